// node consume.js TOPIC [GROUP]     prints messages as they come, until Ctrl-C
//
// All queues of the topic, in every broker set, are read by this one process. The group only keeps how far it came: the
// next run goes on from there. To share the queues among many processes, use Join or Subscribe.
"use strict";

const { setTimeout: sleep } = require("node:timers/promises");
const { ConsumerService, client, call, route, codeOf, isRetryable, exit } = require("./broker");

const WAIT_MS = 20_000;

async function main([topic, group = "example-node"]) {
  if (!topic) throw new Error("usage: node consume.js TOPIC [GROUP]");
  const parts = await route(topic);
  if (parts.length === 0) throw new Error(`there is no topic ${topic}: send something first`);
  await Promise.all(parts.map((part) => consume(topic, group, part)));
}

/** Each set counts its own queues, and keeps the offsets of the group in them. */
async function consume(topic, group, { broker_set, address }) {
  const consumer = client(ConsumerService, address);
  const earliest = await call(consumer, "FindOffsets", { topic, kind: "OFFSET_EARLIEST" });
  const committed = await call(consumer, "QueryOffsets", { group });
  consumer.close();

  const starts = new Map();
  for (const one of [...earliest.positions, ...committed.positions]) {
    if (one.topic === topic) starts.set(one.queue_id, one.queue_offset);
  }
  await Promise.all(
    [...starts].map(([queue_id, queue_offset]) =>
      follow({ topic, queue_id, queue_offset }, group, broker_set),
    ),
  );
}

/** One long poll after the other; a lost leader is a reason to ask for the new one. */
async function follow(position, group, brokerSet) {
  let consumer = null;
  for (;;) {
    try {
      consumer = consumer || (await leaderOf(position.topic, brokerSet));
      const request = { ...position, bytes_max: 1 << 20, wait_ms: WAIT_MS };
      const answer = await call(consumer, "Pull", request, WAIT_MS + 5000);
      answer.runs.forEach((run) => print(position.queue_id, run));
      position.queue_offset = answer.next_offset;
      if (answer.runs.length > 0) {
        await call(consumer, "CommitOffsets", { group, positions: [position] });
      }
    } catch (error) {
      if (!isRetryable(error)) throw error;
      console.error(`${codeOf(error)}: trying again`);
      if (consumer) consumer.close();
      consumer = null;
      await sleep(1000);
    }
  }
}

async function leaderOf(topic, brokerSet) {
  const part = (await route(topic)).find((each) => each.broker_set === brokerSet);
  if (!part) throw new Error(`broker set ${brokerSet} does not have topic ${topic} any more`);
  return client(ConsumerService, part.address);
}

/** A run: messages that follow each other. */
function print(queueId, run) {
  run.messages.forEach((message, i) => {
    const offset = BigInt(run.queue_offset) + BigInt(i);
    const isPlain = message.compression === "COMPRESSION_NONE";
    const body = isPlain ? message.body.toString() : `(${message.body.length} bytes of LZ4)`;
    console.log(`received queue ${queueId} offset ${offset} tag ${message.tag}: ${body}`);
  });
}

main(process.argv.slice(2)).catch(exit);
