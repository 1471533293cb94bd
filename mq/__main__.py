"""The `mq` program: puts the command line and the server together; `python -m mq` is the same."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from mq.admin import cli
from mq.admin.cli import Later

if TYPE_CHECKING:
    from mq.config import Config


# Every command that lives outside of mq.admin.cli, in the order in which `mq --help` shows them.
_COMMANDS = (
    Later("produce", "mq.admin.produce:produce", "Send messages to a topic."),
    Later("consume", "mq.admin.consume:consume", "Print messages of topics."),
    Later(
        "receive", "mq.admin.receive:receive", "Take messages for a group, and acknowledge them."
    ),
    Later("topic", "mq.admin.topics:topic", "List, create, describe, alter, delete topics."),
    Later("group", "mq.admin.groups:group", "List, describe, reset, set, delete groups."),
    Later("dlq", "mq.admin.dead_letters:dlq", "List, show, resend, purge dead letters."),
    Later(
        "transaction",
        "mq.admin.transactions:transaction",
        "List, commit, roll back, check transactions.",
    ),
    Later("message", "mq.admin.messages:message", "Look up stored messages."),
    Later("cluster", "mq.admin.cluster:cluster", "Show and change the nodes of the cluster."),
    Later("health", "mq.admin.health:health", "Say whether one broker is up."),
    Later("backup", "mq.admin.backup:backup", "Copy the logs of broker sets; check copies."),
    Later("restore", "mq.admin.restore:restore", "Make a data directory from a backup."),
    Later("spark", "mq_spark.cli:spark", "Archive, replay, measure topics with Apache Spark."),
    Later("bench", "mq.admin.bench:bench", "Measure throughput and latency."),
    Later("dev-cluster", "mq.admin.dev_cluster:dev_cluster", "Run a cluster on this machine."),
    Later("dump", "mq.admin.dump:dump", "Print what is in a data directory."),
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
