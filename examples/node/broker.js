// How to reach the broker: read the protos, ask any node for the leader, tell errors apart.
"use strict";

const path = require("node:path");
const grpc = require("@grpc/grpc-js");
const loader = require("@grpc/proto-loader");

const SERVER = process.env.MQ_SERVER || "127.0.0.1:8081";

const definition = loader.loadSync(
  ["mq/v1/cluster.proto", "mq/v1/producer.proto", "mq/v1/consumer.proto"],
  {
    includeDirs: [path.join(__dirname, "..", "..", "proto")],
    keepCase: true,
    longs: String, // offsets have 64 bits
    enums: String,
    defaults: true,
  },
);
const { ClusterService, ProducerService, ConsumerService } =
  grpc.loadPackageDefinition(definition).mq.v1;

function client(Service, address) {
  return new Service(address, grpc.credentials.createInsecure(), {
    // A message may have 4 MiB, which is the default for a whole answer.
    "grpc.max_receive_message_length": 16 << 20,
  });
}

/** Calls a method as a promise. */
function call(service, method, request, timeoutMs = 5000) {
  return new Promise((resolve, reject) => {
    service[method](request, { deadline: Date.now() + timeoutMs }, (error, answer) =>
      error ? reject(error) : resolve(answer),
    );
  });
}

/**
 * Where the topic is: each broker set that has queues of it, and the address of who leads that one.
 * Every node knows; the leaders serve. Empty: there is no such topic.
 */
async function route(topic, { create = false } = {}) {
  const cluster = client(ClusterService, SERVER);
  try {
    const answer = await call(cluster, "Route", { topics: [topic], create_missing: create });
    // Not created: the broker is not allowed to. Whoever sends there is told so.
    if (create && answer.topics.length === 0) return [{ broker_set: "", address: SERVER }];
    return answer.topics.map(({ broker_set }) => {
      const set = answer.broker_sets.find((each) => each.name === broker_set);
      const leader = set && set.nodes.find((node) => node.node_id === set.leader_id);
      return { broker_set, address: (leader && leader.address) || SERVER };
    });
  } finally {
    cluster.close();
  }
}

/** The broker's name for what went wrong, see proto/mq/v1/status.proto. */
function codeOf(error) {
  const [code] = error.metadata ? error.metadata.get("mq-code") : [];
  return code || grpc.status[error.code] || error.name;
}

// The same request may succeed later, or at another node.
const RETRYABLE = new Set(["NOT_LEADER", "NODE_STOPPED", "FLOW_CONTROL", "UNAVAILABLE"]);

const isRetryable = (error) => RETRYABLE.has(codeOf(error));

/** The end of a program that failed. */
function exit(error) {
  console.error(`${codeOf(error)}: ${error.details || error.message}`);
  process.exit(1);
}

module.exports = { ProducerService, ConsumerService, client, call, route, codeOf, isRetryable, exit };
