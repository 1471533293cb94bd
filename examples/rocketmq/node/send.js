// node send.js TOPIC TEXT...     sends each text as a message
"use strict";

const { Producer } = require("rocketmq-client-nodejs");
const { options } = require("./broker");

async function main([topic, ...texts]) {
  if (!topic || texts.length === 0) throw new Error("usage: node send.js TOPIC TEXT...");
  const producer = new Producer({ ...options, topics: [topic] });
  await producer.startup();
  for (const text of texts) {
    const receipt = await producer.send({ topic, body: Buffer.from(text), tag: "example" });
    console.log(`sent ${receipt.messageId}`);
  }
  await producer.shutdown();
}

main(process.argv.slice(2)).catch((error) => {
  console.error(error.message);
  process.exit(1);
});
