import io.grpc.CallOptions;
import io.grpc.ClientCall;
import io.grpc.ManagedChannel;
import io.grpc.Metadata;
import io.grpc.MethodDescriptor;
import io.grpc.MethodDescriptor.MethodType;
import io.grpc.Status;
import io.grpc.netty.shaded.io.grpc.netty.GrpcSslContexts;
import io.grpc.netty.shaded.io.grpc.netty.NettyChannelBuilder;
import java.io.BufferedInputStream;
import java.io.BufferedOutputStream;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.EOFException;
import java.io.File;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;

/**
 * A client of any gRPC server, driven over stdin and stdout: see ../__init__.py for the frames.
 *
 * <pre>java Client HOST:PORT [CA-FILE]</pre>
 */
public final class Client {
  private static final DataOutputStream OUTPUT =
      new DataOutputStream(
          new BufferedOutputStream(new FileOutputStream(FileDescriptor.out), 1 << 16));

  public static void main(String[] arguments) throws IOException {
    NettyChannelBuilder builder =
        NettyChannelBuilder.forTarget(arguments[0]).maxInboundMessageSize(Integer.MAX_VALUE);
    if (arguments.length > 1) {
      builder.sslContext(
          GrpcSslContexts.forClient().trustManager(new File(arguments[1])).build());
    } else {
      builder.usePlaintext();
    }
    serve(builder.build());
    System.exit(0);
  }

  private static void serve(ManagedChannel channel) throws IOException {
    DataInputStream input = new DataInputStream(new BufferedInputStream(System.in, 1 << 16));
    Map<Integer, ClientCall<byte[], byte[]>> calls = new HashMap<>();
    while (true) {
      int size;
      try {
        size = input.readInt();
      } catch (EOFException end) {
        return;
      }
      int id = input.readInt();
      char kind = (char) input.readByte();
      byte[] payload = input.readNBytes(size);
      ClientCall<byte[], byte[]> call = calls.get(id);
      if (kind == 'O') {
        calls.put(id, open(channel, id, split(payload)));
      } else if (call == null) {
        continue; // cancelled
      } else if (kind == 'W') {
        call.sendMessage(payload);
      } else if (kind == 'H') {
        call.halfClose();
      } else if (kind == 'R') {
        call.request(1);
      } else if (kind == 'C') {
        call.cancel("by the test", null);
        calls.remove(id);
      }
    }
  }

  /** Parts: the shape of the call, path, deadline in milliseconds or 0, request, metadata. */
  private static ClientCall<byte[], byte[]> open(
      ManagedChannel channel, int id, List<byte[]> parts) {
    boolean isUnary = text(parts.get(0)).equals("unary");
    MethodDescriptor<byte[], byte[]> method =
        MethodDescriptor.<byte[], byte[]>newBuilder(new Bytes(), new Bytes())
            .setType(isUnary ? MethodType.UNARY : MethodType.BIDI_STREAMING)
            .setFullMethodName(text(parts.get(1)).substring(1))
            .build();
    CallOptions options = CallOptions.DEFAULT;
    long timeoutMs = Long.parseLong(text(parts.get(2)));
    if (timeoutMs > 0) {
      options = options.withDeadlineAfter(timeoutMs, TimeUnit.MILLISECONDS);
    }
    Metadata metadata = new Metadata();
    for (int at = 4; at < parts.size(); at += 2) {
      metadata.put(asciiKey(text(parts.get(at))), text(parts.get(at + 1)));
    }
    ClientCall<byte[], byte[]> call = channel.newCall(method, options);
    call.start(new Answers(id), metadata);
    if (isUnary) {
      call.request(2); // a second answer would be an error, which the library looks for
      call.sendMessage(parts.get(3));
      call.halfClose();
    }
    return call;
  }

  private static final class Answers extends ClientCall.Listener<byte[]> {
    private final int id;

    Answers(int id) {
      this.id = id;
    }

    @Override
    public void onMessage(byte[] message) {
      writeFrame(id, 'M', message);
    }

    @Override
    public void onClose(Status status, Metadata trailers) {
      List<byte[]> parts = new ArrayList<>();
      parts.add(bytes(Integer.toString(status.getCode().value())));
      parts.add(bytes(status.getDescription() == null ? "" : status.getDescription()));
      for (String key : trailers.keys()) {
        if (key.endsWith(Metadata.BINARY_HEADER_SUFFIX)) {
          Metadata.Key<byte[]> typed = Metadata.Key.of(key, Metadata.BINARY_BYTE_MARSHALLER);
          trailers.getAll(typed).forEach(value -> parts.addAll(List.of(bytes(key), value)));
        } else {
          trailers
              .getAll(asciiKey(key))
              .forEach(value -> parts.addAll(List.of(bytes(key), bytes(value))));
        }
      }
      writeFrame(id, 'S', join(parts));
    }
  }

  private static final class Bytes implements MethodDescriptor.Marshaller<byte[]> {
    @Override
    public InputStream stream(byte[] value) {
      return new ByteArrayInputStream(value);
    }

    @Override
    public byte[] parse(InputStream stream) {
      try {
        return stream.readAllBytes();
      } catch (IOException error) {
        throw new UncheckedIOException(error);
      }
    }
  }

  private static Metadata.Key<String> asciiKey(String name) {
    return Metadata.Key.of(name, Metadata.ASCII_STRING_MARSHALLER);
  }

  // -- frames -------------------------------------------------------------------------------------

  private static void writeFrame(int id, char kind, byte[] payload) {
    synchronized (OUTPUT) {
      try {
        OUTPUT.writeInt(payload.length);
        OUTPUT.writeInt(id);
        OUTPUT.writeByte(kind);
        OUTPUT.write(payload);
        OUTPUT.flush();
      } catch (IOException error) {
        throw new UncheckedIOException(error);
      }
    }
  }

  private static byte[] join(List<byte[]> parts) {
    ByteArrayOutputStream joined = new ByteArrayOutputStream();
    for (byte[] one : parts) {
      joined.writeBytes(ByteBuffer.allocate(4).putInt(one.length).array());
      joined.writeBytes(one);
    }
    return joined.toByteArray();
  }

  private static List<byte[]> split(byte[] joined) {
    List<byte[]> parts = new ArrayList<>();
    ByteBuffer rest = ByteBuffer.wrap(joined);
    while (rest.hasRemaining()) {
      byte[] one = new byte[rest.getInt()];
      rest.get(one);
      parts.add(one);
    }
    return parts;
  }

  private static String text(byte[] data) {
    return new String(data, StandardCharsets.UTF_8);
  }

  private static byte[] bytes(String text) {
    return text.getBytes(StandardCharsets.UTF_8);
  }
}
