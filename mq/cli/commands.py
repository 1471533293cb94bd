"""The list of commands, each with the module that has it."""

from __future__ import annotations

from mq.cli.main import Later

# Every command that lives outside of mq.cli.main, in the order in which `mq --help` shows them.
COMMANDS = (
    Later("produce", "mq.cli.produce:produce", "Send messages to a topic."),
    Later("consume", "mq.cli.consume:consume", "Print messages of topics."),
    Later("receive", "mq.cli.receive:receive", "Take messages for a group, and acknowledge them."),
    Later("topic", "mq.cli.topics:topic", "List, create, describe, alter, delete topics."),
    Later("group", "mq.cli.groups:group", "List, describe, reset, set, evict, delete groups."),
    Later("dlq", "mq.cli.dead_letters:dlq", "List, show, resend, purge dead letters."),
    Later(
        "transaction",
        "mq.cli.transactions:transaction",
        "List, commit, roll back, check transactions.",
    ),
    Later("message", "mq.cli.messages:message", "Look up stored messages."),
    Later("cluster", "mq.cli.cluster:cluster", "Show and change the nodes of the cluster."),
    Later("top", "mq.cli.top:top", "Show rates, lags and nodes, live."),
    Later("user", "mq.cli.users:user", "List, create, alter, delete users; bring sets in line."),
    Later("role", "mq.cli.users:role", "List roles; grant and revoke them."),
    Later("key", "mq.cli.keys:key", "List, create, revoke keys of users."),
    Later("policy", "mq.cli.policies:policy", "List, add, remove, check policies."),
    Later("quota", "mq.cli.quotas:quota", "List, set, remove quotas of users and namespaces."),
    Later("namespace", "mq.cli.namespaces:namespace", "List, create, delete namespaces."),
    Later("login", "mq.cli.login:login", "Exchange a password for a key of some hours."),
    Later("logout", "mq.cli.login:logout", "End the session that a login has begun."),
    Later("whoami", "mq.cli.login:whoami", "Say who the brokers take you for."),
    Later("audit", "mq.cli.audit:audit", "Show who changed what, and who was refused."),
    Later("health", "mq.cli.health:health", "Say whether one broker is up."),
    Later("console", "mq.cli.console:console", "Serve the web console."),
    Later("backup", "mq.cli.backup:backup", "Copy the logs of broker sets; check copies."),
    Later("restore", "mq.cli.restore:restore", "Make a data directory from a backup."),
    Later("spark", "mq_spark.cli:spark", "Archive, replay, measure topics with Apache Spark."),
    Later("bench", "mq.cli.bench:bench", "Measure throughput and latency."),
    Later("certs", "mq.cli.certs:certs", "Make certificates for development."),
    Later("dev-cluster", "mq.cli.dev_cluster:dev_cluster", "Run a cluster on this machine."),
    Later("dump", "mq.cli.dump:dump", "Print what is in a data directory."),
    Later("completion", "mq.cli.completion:completion", "Print the completion script of a shell."),
)
