"""Archives for tests: messages that have everything a message can have, and one run of an archive
in the session of the tests.
"""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from mq.client import Message, Producer
from mq_spark.pipelines.archiving.archive import Archiving, start
from mq_spark.pipelines.archiving.archive_directory import ArchiveDirectory, Stored
from mq_spark.pipelines.common import Runs
from tests.spark.commands import DEADLINE_S


def send_numbers(servers: str, topic: str, numbers: range) -> None:
    """Each is a body, and everything else of its message follows from it."""
    with Producer(servers) as producer:
        for number in numbers:
            message = Message(
                b"%d" % number,
                tag="ab"[number % 2],
                keys=[f"k{number}"],
                properties={"n": str(number)},
                ordering_key=f"c{number % 7}" if number % 3 == 0 else "",
            )
            producer.send_async(topic, message)


def archive(spark: SparkSession, path: Path, options: dict[str, str]) -> Stored:
    """What one run stores, until nothing is left."""
    directory = ArchiveDirectory(path)
    archiving = Archiving(directory, str(directory.checkpoint), 1_000, 1 << 20)
    options = {"includeProperties": "true", "startingOffsets": "earliest", **options}
    with directory.locked():
        query = start(spark, options, archiving, Runs(None, is_once=True, every_s=1.0))
        assert query.awaitTermination(DEADLINE_S)
    stored, _ = archiving.done()
    return stored
