"""Options that the pipelines share: brokers, Spark's settings, when to run.

    @click.command()
    @with_pipeline          # first argument: Pipeline, of --server --json --master --remote --conf
    @with_runs              # keyword `runs`: Runs, of --checkpoint --once --every
    def archive(pipeline: Pipeline, runs: Runs, ...) -> None:
        with pipeline.session("archive") as session:
            query = runs.start(frame.writeStream.foreachBatch(...), default_checkpoint)
            progress.follow(query, "archive")

A session is stopped with its block. Nothing here knows what a pipeline does.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mq.cli.options import Brokers, Duration, with_brokers
from mq_spark.session import OF_SQL, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from mq.client.lowlevel import ConnectionOptions

Command = Callable[..., Any]

_EVERY_MIN_S = 0.2


def connection_to(brokers: Brokers) -> ConnectionOptions:
    """How clients connect to these brokers. Raises IllegalConfig."""
    from mq.client.lowlevel import ConnectionOptions

    return ConnectionOptions(brokers.servers, **brokers.security)


@dataclasses.dataclass(frozen=True, slots=True)
class Pipeline:
    """The options about brokers and Spark."""

    brokers: Brokers
    master: str
    remote: str
    conf: Mapping[str, str]

    @property
    def connection(self) -> ConnectionOptions:
        return connection_to(self.brokers)

    @property
    def as_json(self) -> bool:
        """Print the result as JSON."""
        return self.brokers.as_json

    @contextmanager
    def session(self, name: str, *, needs_broker: bool = True) -> Iterator[SparkSession]:
        """A session with these settings, which ends with the block.

        Unreachable before Java is started, when no broker is there and one is needed.
        """
        if needs_broker:
            self.brokers.check()
        made = session(f"mq spark {name}", master=self.master, remote=self.remote, conf=self.conf)
        with made:
            yield made


@dataclasses.dataclass(frozen=True, slots=True)
class Runs:
    """The times of batches, and the place of their progress."""

    checkpoint: str | None
    is_once: bool
    every_s: float

    def start(self, writer: DataStreamWriter, default_checkpoint: str) -> StreamingQuery:
        """The query, with its trigger and checkpoint."""
        writer = writer.option("checkpointLocation", self.checkpoint or default_checkpoint)
        if self.is_once:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=f"{round(self.every_s * 1000)} milliseconds").start()


def with_pipeline(command: Command, taken: Collection[str] = ()) -> Command:
    """Adds the flags of `with_brokers`, --master, --remote and --conf; the command gets them as
    Pipeline, its first argument. `taken`: flags of a connection that the command has for something
    else.
    """
    with_conf = click.option(
        "--conf",
        metavar="KEY=VALUE",
        multiple=True,
        callback=_conf,
        help="A setting of Spark's; may be given several times.",
    )
    with_master = click.option(
        "--master",
        metavar="URL",
        default="",
        callback=_master,
        help="Where Spark runs: local[N] with N tasks at a time, or a cluster's address. "
        "[default: local[*], or that of spark-submit]",
    )
    with_remote = click.option(
        "--remote",
        metavar="sc://HOST:PORT",
        default="",
        envvar="SPARK_REMOTE",
        help="A server of Spark Connect, in place of a master; also SPARK_REMOTE. It has mq, and "
        "directories at the same paths.",
    )

    @functools.wraps(command)
    def called(
        brokers: Brokers,
        *args: Any,
        master: str,
        remote: str,
        conf: dict[str, str],
        **others: Any,
    ) -> Any:
        _check_place(master, remote, conf)
        _check_packages()
        return command(Pipeline(brokers, master, remote, conf), *args, **others)

    return with_brokers("", taken=taken)(with_master(with_remote(with_conf(called))))


def _check_place(master: str, remote: str, conf: Mapping[str, str]) -> None:
    if master and remote:
        raise click.UsageError("--master and --remote (SPARK_REMOTE) are two places: give one")
    # Spark would pass over them in silence.
    vain = [key for key in conf if remote and not key.startswith(OF_SQL)]
    if vain:
        raise click.UsageError(f"--conf {vain[0]} is for the start of the server of --remote")


def _check_packages() -> None:
    """ModuleNotFoundError before anything is done: a broker would be asked for in vain."""
    for name in ("pyspark", "pyarrow"):
        if importlib.util.find_spec(name) is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def with_runs(command: Command) -> Command:
    """Adds --checkpoint, --once and --every; the command gets them as `runs`."""
    with_checkpoint = click.option(
        "--checkpoint",
        metavar="DIR",
        callback=_checkpoint,
        help="Where it is written how far this got; a restart goes on from there. "
        "[default: beside the result]",
    )
    with_once = click.option(
        "--once", "is_once", is_flag=True, help="End when all that is there now is done."
    )
    with_every = click.option(
        "--every",
        "every_s",
        metavar="DURATION",
        type=Duration(),
        default="5s",
        show_default=True,
        callback=_every,
        help="Time between batches, at least 200ms.",
    )

    @functools.wraps(command)
    def called(
        *args: Any, checkpoint: str | None, is_once: bool, every_s: float, **others: Any
    ) -> Any:
        return command(*args, runs=Runs(checkpoint, is_once, every_s), **others)

    return with_checkpoint(with_once(with_every(called)))


def _master(_context: click.Context, _option: click.Parameter, given: str) -> str:
    if given.startswith("sc:"):
        raise click.BadParameter(f"for Spark Connect give --remote {given}")
    return given


def _checkpoint(_context: click.Context, _option: click.Parameter, given: str | None) -> str | None:
    """Other processes have other directories; an address is one everywhere."""
    return given if not given or re.match(r"[a-z0-9]+:", given) else str(Path(given).absolute())


def _conf(
    _context: click.Context, _option: click.Parameter, given: tuple[str, ...]
) -> dict[str, str]:
    conf = {}
    for each in given:
        key, sign, value = each.partition("=")
        if not sign or not key.startswith("spark."):
            raise click.BadParameter(f"{each!r} is not like spark.driver.memory=4g")
        conf[key] = value
    return conf


def _every(_context: click.Context, _option: click.Parameter, every_s: float) -> float:
    if every_s < _EVERY_MIN_S:
        raise click.BadParameter(f"a batch costs Spark about {_EVERY_MIN_S:g} s: take longer")
    return every_s
