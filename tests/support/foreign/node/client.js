// A client of any gRPC server, driven over stdin and stdout: see ../__init__.py for the frames.
//
//     node client.js HOST:PORT [CA-FILE]
"use strict";

const fs = require("node:fs");
const grpc = require("@grpc/grpc-js");

const HEAD_BYTES = 9;
const [address, ca] = process.argv.slice(2);
const credentials = ca
  ? grpc.credentials.createSsl(fs.readFileSync(ca))
  : grpc.credentials.createInsecure();
const client = new grpc.Client(address, credentials, {
  "grpc.max_receive_message_length": -1,
  "grpc.max_send_message_length": -1,
});
const bytes = (data) => data;
const calls = new Map();

/** Parts: the shape of the call, path, deadline in milliseconds or 0, request, metadata. */
function open(id, [shape, path, timeout, request, ...pairs]) {
  const metadata = new grpc.Metadata();
  for (let at = 0; at < pairs.length; at += 2) {
    metadata.add(pairs[at].toString(), pairs[at + 1].toString());
  }
  const options = Number(timeout) ? { deadline: Date.now() + Number(timeout) } : {};
  const start = shape.toString() === "unary" ? unary : stream;
  calls.set(id, start(id, path.toString(), request, metadata, options));
}

function unary(id, path, request, metadata, options) {
  const answered = (error, answer) => error || writeFrame(id, "M", answer);
  const call = client.makeUnaryRequest(path, bytes, bytes, request, metadata, options, answered);
  call.on("status", (status) => end(id, status));
  return call;
}

function stream(id, path, _request, metadata, options) {
  const call = client.makeBidiStreamRequest(path, bytes, bytes, metadata, options);
  let status;
  call.wanted = 0;
  call.pump = () => {
    for (let answer; call.wanted > 0 && (answer = call.read()) !== null; call.wanted--) {
      writeFrame(id, "M", answer);
    }
  };
  call.on("readable", call.pump);
  call.on("error", () => {}); // its status says the same
  // The status may come before the last messages are read, or after the end of them.
  call.on("status", (found) => {
    status = found;
    if (call.readableEnded) end(id, status);
  });
  call.on("end", () => status && end(id, status));
  return call;
}

function end(id, { code, details, metadata }) {
  const parts = [String(code), details];
  for (const key of Object.keys(metadata.getMap())) {
    for (const value of metadata.get(key)) parts.push(key, value);
  }
  calls.delete(id);
  writeFrame(id, "S", join(parts));
}

function handle(id, kind, payload) {
  const call = calls.get(id);
  if (kind === "O") open(id, split(payload));
  else if (!call) return; // ended
  else if (kind === "W") call.write(payload);
  else if (kind === "H") call.end();
  else if (kind === "C") call.cancel();
  else if (kind === "R") {
    call.wanted++;
    call.pump();
  }
}

// -- frames ---------------------------------------------------------------------------------------

let [pieces, unreadBytes, neededBytes] = [[], 0, HEAD_BYTES];
process.stdin.on("data", (data) => {
  pieces.push(data);
  unreadBytes += data.length;
  if (unreadBytes < neededBytes) return;
  let unread = Buffer.concat(pieces);
  for (neededBytes = HEAD_BYTES; unread.length >= neededBytes; neededBytes = HEAD_BYTES) {
    neededBytes += unread.readUInt32BE(0);
    if (unread.length < neededBytes) break;
    const payload = unread.subarray(HEAD_BYTES, neededBytes);
    handle(unread.readUInt32BE(4), String.fromCharCode(unread[8]), payload);
    unread = unread.subarray(neededBytes);
  }
  [pieces, unreadBytes] = [[unread], unread.length];
});
process.stdin.on("end", () => process.exit(0));

function writeFrame(id, kind, payload) {
  const head = Buffer.alloc(HEAD_BYTES);
  head.writeUInt32BE(payload.length, 0);
  head.writeUInt32BE(id, 4);
  head.write(kind, 8);
  process.stdout.write(Buffer.concat([head, payload]));
}

function join(parts) {
  return Buffer.concat(
    parts.flatMap((one) => {
      const size = Buffer.alloc(4);
      size.writeUInt32BE(Buffer.byteLength(one));
      return [size, Buffer.from(one)];
    }),
  );
}

function split(joined) {
  const parts = [];
  for (let at = 0; at < joined.length; ) {
    const end = at + 4 + joined.readUInt32BE(at);
    parts.push(joined.subarray(at + 4, end));
    at = end;
  }
  return parts;
}
