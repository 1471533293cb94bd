import java.io.BufferedReader;
import java.io.Closeable;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientConfigurationBuilder;
import org.apache.rocketmq.client.apis.ClientException;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.StaticSessionCredentialsProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;
import org.apache.rocketmq.shaded.com.google.gson.Gson;
import org.apache.rocketmq.shaded.com.google.gson.JsonObject;

/** The official Java client, told what to do by lines of JSON: see ../client.py. */
final class Client {
  private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
  private static final Gson GSON = new Gson();

  private final ClientConfiguration configuration;
  private final Map<String, Producer> producers = new ConcurrentHashMap<>();
  private final Map<Integer, Closeable> consumers = new ConcurrentHashMap<>();
  // By consumer and message id.
  private final Map<String, MessageView> received = new ConcurrentHashMap<>();

  private Client(String address) {
    ClientConfigurationBuilder builder =
        ClientConfiguration.newBuilder()
            .setEndpoints(address)
            .enableSsl("1".equals(System.getenv("ROCKETMQ_TLS")))
            .setNamespace(System.getenv().getOrDefault("ROCKETMQ_NAMESPACE", ""));
    String accessKey = System.getenv("ROCKETMQ_ACCESS_KEY");
    if (accessKey != null) {
      builder.setCredentialProvider(
          new StaticSessionCredentialsProvider(accessKey, System.getenv("ROCKETMQ_SECRET_KEY")));
    }
    configuration = builder.build();
  }

  private static synchronized void write(JsonObject line) {
    System.out.println(GSON.toJson(line));
    System.out.flush();
  }

  private static JsonObject shown(MessageView view) {
    JsonObject message = new JsonObject();
    message.addProperty("message_id", view.getMessageId().toString());
    message.addProperty("topic", view.getTopic());
    message.addProperty("body", StandardCharsets.UTF_8.decode(view.getBody()).toString());
    message.addProperty("tag", view.getTag().orElse(""));
    message.add("keys", GSON.toJsonTree(view.getKeys().stream().sorted().toList()));
    message.add("properties", GSON.toJsonTree(view.getProperties()));
    message.addProperty("message_group", view.getMessageGroup().orElse(""));
    message.addProperty("deliver_at_ms", view.getDeliveryTimestamp().orElse(0L));
    message.addProperty("born_at_ms", view.getBornTimestamp());
    message.addProperty("attempt", view.getDeliveryAttempt());
    message.addProperty("at_ms", System.currentTimeMillis());
    return message;
  }

  private static TransactionResolution check(MessageView view) {
    JsonObject event = new JsonObject();
    event.addProperty("event", "check");
    event.add("message", shown(view));
    write(event);
    return switch (view.getProperties().get("check")) {
      case "commit" -> TransactionResolution.COMMIT;
      case "rollback" -> TransactionResolution.ROLLBACK;
      default -> TransactionResolution.UNKNOWN;
    };
  }

  private synchronized Producer producer(JsonObject request) throws ClientException {
    String topic = request.get("topic").getAsString();
    if (!producers.containsKey(topic)) {
      Producer producer =
          PROVIDER
              .newProducerBuilder()
              .setClientConfiguration(configuration)
              .setTopics(topic)
              .setTransactionChecker(Client::check)
              .build();
      producers.put(topic, producer);
    }
    return producers.get(topic);
  }

  private static Message built(JsonObject request) {
    MessageBuilder builder =
        PROVIDER
            .newMessageBuilder()
            .setTopic(request.get("topic").getAsString())
            .setBody(request.get("body").getAsString().getBytes(StandardCharsets.UTF_8));
    if (request.has("tag")) {
      builder.setTag(request.get("tag").getAsString());
    }
    if (request.has("keys")) {
      builder.setKeys(GSON.fromJson(request.get("keys"), String[].class));
    }
    if (request.has("properties")) {
      request
          .getAsJsonObject("properties")
          .entrySet()
          .forEach(one -> builder.addProperty(one.getKey(), one.getValue().getAsString()));
    }
    if (request.has("message_group")) {
      builder.setMessageGroup(request.get("message_group").getAsString());
    }
    if (request.has("priority")) {
      builder.setPriority(request.get("priority").getAsInt());
    }
    if (request.has("deliver_at_ms")) {
      builder.setDeliveryTimestamp(request.get("deliver_at_ms").getAsLong());
    }
    return builder.build();
  }

  private static Map<String, FilterExpression> subscriptions(JsonObject request) {
    FilterExpression expression = FilterExpression.SUB_ALL;
    if (request.has("sql")) {
      String sql = request.get("sql").getAsString();
      expression = new FilterExpression(sql, FilterExpressionType.SQL92);
    } else if (request.has("tags")) {
      expression = new FilterExpression(request.get("tags").getAsString());
    }
    return Map.of(request.get("topic").getAsString(), expression);
  }

  private void send(JsonObject request, JsonObject answer) throws ClientException {
    SendReceipt receipt = producer(request).send(built(request));
    answer.addProperty("message_id", receipt.getMessageId().toString());
    answer.addProperty("recall_handle", receipt.getRecallHandle());
  }

  private void half(JsonObject request, JsonObject answer) throws ClientException {
    Producer producer = producer(request);
    Transaction transaction = producer.beginTransaction();
    SendReceipt receipt = producer.send(built(request), transaction);
    switch (request.get("end").getAsString()) {
      case "commit" -> transaction.commit();
      case "rollback" -> transaction.rollback();
      default -> {}
    }
    answer.addProperty("message_id", receipt.getMessageId().toString());
  }

  private void recall(JsonObject request, JsonObject answer) throws ClientException {
    String topic = request.get("topic").getAsString();
    String handle = request.get("recall_handle").getAsString();
    answer.addProperty(
        "message_id", producer(request).recallMessage(topic, handle).getMessageId().toString());
  }

  private void simple(JsonObject request, JsonObject answer) throws ClientException {
    Closeable consumer =
        PROVIDER
            .newSimpleConsumerBuilder()
            .setClientConfiguration(configuration)
            .setConsumerGroup(request.get("group").getAsString())
            .setSubscriptionExpressions(subscriptions(request))
            .setAwaitDuration(Duration.ofSeconds(request.get("await_s").getAsLong()))
            .build();
    opened(request, answer, consumer);
  }

  private void push(JsonObject request, JsonObject answer) throws ClientException {
    int number = request.get("id").getAsInt();
    Map<String, Integer> calls = new ConcurrentHashMap<>();
    Closeable consumer =
        PROVIDER
            .newPushConsumerBuilder()
            .setClientConfiguration(configuration)
            .setConsumerGroup(request.get("group").getAsString())
            .setSubscriptionExpressions(subscriptions(request))
            .setMessageListener(view -> consume(number, calls, view))
            .build();
    opened(request, answer, consumer);
  }

  private static ConsumeResult consume(int number, Map<String, Integer> calls, MessageView view) {
    int call = calls.merge(view.getMessageId().toString(), 1, Integer::sum);
    JsonObject event = new JsonObject();
    event.addProperty("event", "message");
    event.addProperty("consumer", number);
    event.addProperty("call", call);
    event.add("message", shown(view));
    write(event);
    int failures = Integer.parseInt(view.getProperties().getOrDefault("failures", "0"));
    return call <= failures ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
  }

  private void opened(JsonObject request, JsonObject answer, Closeable consumer) {
    consumers.put(request.get("id").getAsInt(), consumer);
    answer.addProperty("consumer", request.get("id").getAsInt());
  }

  private SimpleConsumer consumer(JsonObject request) {
    return (SimpleConsumer) consumers.get(request.get("consumer").getAsInt());
  }

  private static String place(JsonObject request, String messageId) {
    return request.get("consumer").getAsInt() + " " + messageId;
  }

  private MessageView taken(JsonObject request) {
    return received.get(place(request, request.get("message_id").getAsString()));
  }

  private void receive(JsonObject request, JsonObject answer) throws ClientException {
    List<JsonObject> messages = new ArrayList<>();
    Duration invisible = Duration.ofSeconds(request.get("invisible_s").getAsLong());
    int count = request.get("count").getAsInt();
    for (MessageView view : consumer(request).receive(count, invisible)) {
      received.put(place(request, view.getMessageId().toString()), view);
      messages.add(shown(view));
    }
    answer.add("messages", GSON.toJsonTree(messages));
  }

  private void change(JsonObject request) throws ClientException {
    Duration invisible = Duration.ofSeconds(request.get("invisible_s").getAsLong());
    consumer(request).changeInvisibleDuration(taken(request), invisible);
  }

  // Sends for so many seconds, so many at a time: "<caller> <number>", filled up to the size.
  private void load(JsonObject request, JsonObject answer)
      throws ClientException, InterruptedException {
    Producer producer = producer(request);
    String topic = request.get("topic").getAsString();
    int size = request.get("size").getAsInt();
    int[] sent = new int[request.get("in_flight").getAsInt()];
    List<String> errors = Collections.synchronizedList(new ArrayList<>());
    AtomicLong slowestMs = new AtomicLong();
    long begin = System.nanoTime();
    long end = begin + (long) (request.get("seconds").getAsDouble() * 1e9);
    List<Thread> callers = new ArrayList<>();
    for (int n = 0; n < sent.length; n++) {
      int caller = n;
      Thread thread =
          new Thread(
              () -> {
                try {
                  while (System.nanoTime() < end) {
                    String body = caller + " " + sent[caller] + " ";
                    body += "x".repeat(Math.max(0, size - body.length()));
                    long start = System.nanoTime();
                    byte[] bytes = body.getBytes(StandardCharsets.UTF_8);
                    producer.send(
                        PROVIDER.newMessageBuilder().setTopic(topic).setBody(bytes).build());
                    long tookMs = (System.nanoTime() - start) / 1_000_000;
                    slowestMs.accumulateAndGet(tookMs, Math::max);
                    sent[caller]++;
                  }
                } catch (ClientException | RuntimeException error) {
                  errors.add(error.toString());
                }
              });
      callers.add(thread);
      thread.start();
    }
    for (Thread thread : callers) {
      thread.join();
    }
    answer.add("sent", GSON.toJsonTree(sent));
    answer.add("errors", GSON.toJsonTree(errors));
    answer.addProperty("slowest_ms", slowestMs.get());
    answer.addProperty("seconds", (System.nanoTime() - begin) / 1e9);
  }

  private void serve(JsonObject request) {
    JsonObject answer = new JsonObject();
    answer.add("id", request.get("id"));
    try {
      switch (request.get("do").getAsString()) {
        case "send" -> send(request, answer);
        case "half" -> half(request, answer);
        case "recall" -> recall(request, answer);
        case "simple" -> simple(request, answer);
        case "push" -> push(request, answer);
        case "receive" -> receive(request, answer);
        case "ack" -> consumer(request).ack(taken(request));
        case "change" -> change(request);
        case "load" -> load(request, answer);
        case "close" -> consumers.remove(request.get("consumer").getAsInt()).close();
        default -> throw new IllegalArgumentException("unknown: " + request);
      }
    } catch (ClientException | IOException | InterruptedException | RuntimeException error) {
      answer.addProperty("error", error.toString());
    }
    write(answer);
  }

  public static void main(String[] arguments) throws IOException {
    Client client = new Client(arguments[0]);
    BufferedReader lines =
        new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    for (String line = lines.readLine(); line != null; line = lines.readLine()) {
      JsonObject request = GSON.fromJson(line, JsonObject.class);
      Thread thread = new Thread(() -> client.serve(request));
      thread.setDaemon(true);
      thread.start();
    }
    System.exit(0);
  }
}
