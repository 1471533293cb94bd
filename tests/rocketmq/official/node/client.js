// The official Node.js client, told what to do by lines of JSON: see ../client.py.
'use strict';

const readline = require('node:readline');
const { ConsumeResult, FilterExpression, Producer, PushConsumer, SimpleConsumer } = require('rocketmq-client-nodejs');
const { FilterType, TransactionResolution } = require('rocketmq-client-nodejs/proto/apache/rocketmq/v2/definition_pb');

const silent = { info() {}, warn: console.error, error: console.error, debug() {} };
const environment = process.env;
const options = {
  endpoints: process.argv[2],
  namespace: environment.ROCKETMQ_NAMESPACE || '',
  sslEnabled: environment.ROCKETMQ_TLS === '1',
  logger: silent,
};
if (environment.ROCKETMQ_ACCESS_KEY) {
  options.sessionCredentials = {
    accessKey: environment.ROCKETMQ_ACCESS_KEY,
    accessSecret: environment.ROCKETMQ_SECRET_KEY,
  };
}
const resolutions = {
  commit: TransactionResolution.COMMIT,
  rollback: TransactionResolution.ROLLBACK,
  unknown: TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED,
};
const producers = new Map();
const consumers = new Map();
// By consumer and message id.
const received = new Map();

function write(line) {
  process.stdout.write(JSON.stringify(line) + '\n');
}

function shown(view) {
  return {
    message_id: view.messageId,
    topic: view.topic,
    body: view.body.toString(),
    tag: view.tag || '',
    keys: [...view.keys].sort(),
    properties: Object.fromEntries(view.properties),
    message_group: view.messageGroup || '',
    deliver_at_ms: view.deliveryTimestamp ? view.deliveryTimestamp.getTime() : 0,
    born_at_ms: view.bornTimestamp ? view.bornTimestamp.getTime() : 0,
    attempt: view.deliveryAttempt,
    at_ms: Date.now(),
  };
}

const checker = {
  async check(view) {
    write({ event: 'check', message: shown(view) });
    return resolutions[view.properties.get('check')];
  },
};

// A promise: requests that come at once have one producer.
function producerOf(topic) {
  if (!producers.has(topic)) {
    const producer = new Producer({ ...options, topics: [topic], checker });
    producers.set(topic, producer.startup().then(() => producer));
  }
  return producers.get(topic);
}

function built(request) {
  const message = {
    topic: request.topic,
    body: Buffer.from(request.body),
    tag: request.tag,
    keys: request.keys,
    messageGroup: request.message_group,
    priority: request.priority,
    properties: new Map(Object.entries(request.properties || {})),
  };
  if (request.deliver_at_ms) message.deliveryTimestamp = new Date(request.deliver_at_ms);
  return message;
}

function subscriptions(request) {
  const expression = request.sql
    ? new FilterExpression(request.sql, FilterType.SQL)
    : new FilterExpression(request.tags || '*');
  return new Map([[request.topic, expression]]);
}

async function opened(number, consumer) {
  await consumer.startup();
  consumers.set(number, consumer);
  return { consumer: number };
}

function taken(request) {
  return [consumers.get(request.consumer), received.get(`${request.consumer} ${request.message_id}`)];
}

const deeds = {
  async send(request) {
    const producer = await producerOf(request.topic);
    const receipt = await producer.send(built(request));
    return { message_id: receipt.messageId, recall_handle: receipt.recallHandle || '' };
  },

  async half(request) {
    const producer = await producerOf(request.topic);
    const transaction = producer.beginTransaction();
    const receipt = await producer.send(built(request), transaction);
    if (request.end === 'commit') await transaction.commit();
    if (request.end === 'rollback') await transaction.rollback();
    return { message_id: receipt.messageId };
  },

  async recall(request) {
    const producer = await producerOf(request.topic);
    const receipt = await producer.recallMessage(request.topic, request.recall_handle);
    return { message_id: receipt.messageId };
  },

  simple(request) {
    return opened(
      request.id,
      new SimpleConsumer({
        ...options,
        consumerGroup: request.group,
        subscriptions: subscriptions(request),
        awaitDuration: request.await_s * 1000,
      }),
    );
  },

  push(request) {
    const calls = new Map();
    const messageListener = {
      consume(view) {
        const call = (calls.get(view.messageId) || 0) + 1;
        calls.set(view.messageId, call);
        write({ event: 'message', consumer: request.id, call, message: shown(view) });
        const failures = Number(view.properties.get('failures') || 0);
        return call <= failures ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
      },
    };
    const consumer = new PushConsumer({
      ...options,
      consumerGroup: request.group,
      subscriptions: subscriptions(request),
      messageListener,
    });
    return opened(request.id, consumer);
  },

  async receive(request) {
    const [consumer] = taken(request);
    const views = await consumer.receive(request.count, request.invisible_s * 1000);
    for (const view of views) received.set(`${request.consumer} ${view.messageId}`, view);
    return { messages: views.map(shown) };
  },

  async ack(request) {
    const [consumer, view] = taken(request);
    await consumer.ack(view);
    return {};
  },

  async change(request) {
    const [consumer, view] = taken(request);
    await consumer.changeInvisibleDuration(view, request.invisible_s * 1000);
    return {};
  },

  async close(request) {
    const [consumer] = taken(request);
    consumers.delete(request.consumer);
    await consumer.shutdown();
    return {};
  },
};

const lines = readline.createInterface({ input: process.stdin });
lines.on('line', async line => {
  const request = JSON.parse(line);
  try {
    write({ id: request.id, ...(await deeds[request.do](request)) });
  } catch (error) {
    write({ id: request.id, error: String(error.stack || error) });
  }
});
lines.on('close', () => process.exit(0));
