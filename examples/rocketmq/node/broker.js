// Where the broker is, by the environment.
"use strict";

const { MQ_SERVER = "127.0.0.1:8081", MQ_ACCESS_KEY, MQ_SECRET_KEY } = process.env;

// By default it logs to a file in ~/logs.
const logger = { debug() {}, info() {}, warn: console.error, error: console.error };
exports.options = { endpoints: MQ_SERVER, namespace: "", logger };
if (MQ_ACCESS_KEY) {
  exports.options.sessionCredentials = { accessKey: MQ_ACCESS_KEY, accessSecret: MQ_SECRET_KEY };
}
