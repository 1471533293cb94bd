"""`mq spark`: the pipelines as commands.

A pipeline is imported when it is used, and PySpark and the other packages of the extra when it
runs: help needs none of them, and a pipeline that lacks one says so. An error of Spark's ends a
command as our own do: as one line.
"""

from __future__ import annotations

from typing import Any

import click

from mq.cli.main import Later
from mq.extras import install
from mq_spark.java import NoJava


def _pipeline(place: str, short_help: str) -> Later:
    """Called as the function that it is."""
    return Later(place.rpartition(":")[2], f"mq_spark.pipelines.{place}", short_help)


# In the order in which `mq spark --help` shows them.
_COMMANDS = (
    _pipeline("archiving.archive:archive", "Topics to Parquet files."),
    _pipeline("archiving.compact:compact", "Few files of many small ones."),
    _pipeline("replaying.replay:replay", "Parquet files back to a topic."),
    _pipeline("measuring.metrics:metrics", "Rates, sizes, latencies by window."),
    _pipeline("etl:etl", "The tutorial: a shop's orders and clicks."),
    Later("pack", "mq_spark.packing:pack", "What executors of a cluster need, as one file."),
)


class SparkGroup(click.Group):
    """Commands that are loaded when they are used. One that lacks a package says which."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        return name, command.load() if isinstance(command, Later) else command, rest

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as error:
            fail(_missing(error))
        except Exception as error:
            if not _is_of_spark(error):
                raise
            # Here, because it needs PySpark; which is there, or its error were not.
            from mq_spark.errors import explain  # noqa: PLC0415

            fail(explain(error))


@click.group(cls=SparkGroup)
def spark() -> None:
    """Archive, replay, measure topics with Apache Spark.

    The pipelines run on this machine, on a cluster with --master, or through
    Spark Connect with --remote, and need the packages of the extra `spark`.
    """


def fail(text: str) -> None:
    """Ends the command, as an error of the broker does."""
    click.echo(f"error: SPARK_FAILED: {' '.join(text.split())}", err=True)
    raise click.exceptions.Exit(1)


def _missing(error: ModuleNotFoundError) -> str:
    package = (error.name or "").partition(".")[0]
    if package in ("mq", "mq_spark"):
        raise error
    return f"the package {package} is not installed; `mq spark` needs it: {install('spark')}"


def _is_of_spark(error: Exception) -> bool:
    """Spark's, or raised by us for it: no slip in our own code, whose trace is wanted."""
    names = {f"{each.__module__.partition('.')[0]}.{each.__name__}" for each in type(error).__mro__}
    return isinstance(error, NoJava) or bool(
        names & {"pyspark.PySparkException", "py4j.Py4JError", "mq_spark.MqSparkError"}
    )


for _command in _COMMANDS:
    spark.add_command(_command)
