"""The `mq` program: puts the command line and the server together; `python -m mq` is the same."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from mq.cli import main as cli
from mq.cli.main import Later

if TYPE_CHECKING:
    from mq.config import Config


# Every command that lives outside of mq.cli.main, in the order in which `mq --help` shows them.
_COMMANDS = (
    Later("produce", "mq.cli.produce:produce", "Send messages to a topic."),
    Later("consume", "mq.cli.consume:consume", "Print messages of topics."),
    Later("receive", "mq.cli.receive:receive", "Take messages for a group, and acknowledge them."),
    Later("topic", "mq.cli.topics:topic", "List, create, describe, alter, delete topics."),
    Later("group", "mq.cli.groups:group", "List, describe, reset, set, delete groups."),
    Later("dlq", "mq.cli.dead_letters:dlq", "List, show, resend, purge dead letters."),
    Later(
        "transaction",
        "mq.cli.transactions:transaction",
        "List, commit, roll back, check transactions.",
    ),
    Later("message", "mq.cli.messages:message", "Look up stored messages."),
    Later("cluster", "mq.cli.cluster:cluster", "Show and change the nodes of the cluster."),
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
    Later("backup", "mq.cli.backup:backup", "Copy the logs of broker sets; check copies."),
    Later("restore", "mq.cli.restore:restore", "Make a data directory from a backup."),
    Later("spark", "mq_spark.cli:spark", "Archive, replay, measure topics with Apache Spark."),
    Later("bench", "mq.cli.bench:bench", "Measure throughput and latency."),
    Later("certs", "mq.cli.certs:certs", "Make certificates for development."),
    Later("dev-cluster", "mq.cli.dev_cluster:dev_cluster", "Run a cluster on this machine."),
    Later("dump", "mq.cli.dump:dump", "Print what is in a data directory."),
)


def main() -> None:
    # As Ctrl-C, also in a background job, which ignores SIGINT: what a command has printed is
    # committed, and the processes that it has started end with it.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    others = list(cli.main.commands.values())
    cli.main.commands.clear()
    for command in (cli.server_command(_run_server), *_COMMANDS, *others):
        cli.main.add_command(command)
    cli.main(prog_name="mq")


def _run_server(config: Config) -> None:
    # Here, so that `mq --help` and the small commands do not load the broker.
    from mq.server import run  # noqa: PLC0415

    run(config)


if __name__ == "__main__":
    main()
