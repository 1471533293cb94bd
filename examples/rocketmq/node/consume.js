// node consume.js TOPIC [GROUP]     prints messages as they come, until Ctrl-C
"use strict";

const { ConsumeResult, PushConsumer } = require("rocketmq-client-nodejs");
const { options } = require("./broker");

async function main([topic, consumerGroup = "example"]) {
  if (!topic) throw new Error("usage: node consume.js TOPIC [GROUP]");
  const messageListener = {
    consume(message) {
      // FAILURE: it comes again later, and is a dead letter when it fails too often.
      console.log(`received ${message.messageId} tag ${message.tag}: ${message.body}`);
      return ConsumeResult.SUCCESS;
    },
  };
  const subscriptions = new Map([[topic, "*"]]);
  const consumer = new PushConsumer({ ...options, consumerGroup, subscriptions, messageListener });
  await consumer.startup();
  for (const signal of ["SIGINT", "SIGTERM"]) {
    process.once(signal, () => consumer.shutdown().finally(() => process.exit(0)));
  }
}

main(process.argv.slice(2)).catch((error) => {
  console.error(error.message);
  process.exit(1);
});
