// node send.js TOPIC TEXT...     sends each text as a message
"use strict";

const { ProducerService, client, call, route, exit } = require("./broker");

async function main([topic, ...texts]) {
  if (!topic || texts.length === 0) throw new Error("usage: node send.js TOPIC TEXT...");
  const [{ address }] = await route(topic, { create: true });
  const producer = client(ProducerService, address);
  for (const text of texts) {
    // No queue_id: the broker chooses one. Answered when a majority of the nodes has it on disk.
    const answer = await call(producer, "Send", {
      topic,
      messages: [
        {
          body: Buffer.from(text),
          tag: "example",
          properties: { language: "node" },
          born_at_ms: Date.now(),
        },
      ],
    });
    console.log(`sent ${answer.message_ids[0]} queue ${answer.queue_id} offset ${answer.queue_offset}`);
  }
  producer.close();
}

main(process.argv.slice(2)).catch(exit);
