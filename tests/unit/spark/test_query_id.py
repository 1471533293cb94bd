"""The id of a query through Spark Connect, where it is in the checkpoint alone. The session is a
stand-in for one: what Spark says itself is in tests/spark.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkAttributeError

from mq_spark.errors import MqSparkError
from mq_spark.query_id import query_id


class RemoteSession:
    @property
    def sparkContext(self) -> Any:  # noqa: N802
        raise PySparkAttributeError(
            errorClass="JVM_ATTRIBUTE_NOT_SUPPORTED",
            messageParameters={"attr_name": "sparkContext"},
        )


def _query_id(checkpoint: str) -> str:
    session: Any = RemoteSession()
    return query_id(session, checkpoint)


def test_it_is_the_id_in_the_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "metadata").write_text('{"id":"3f2c"}')
    assert _query_id(str(tmp_path)) == _query_id(f"file:{tmp_path}") == "3f2c"


def test_without_a_checkpoint_there_is_none() -> None:
    assert _query_id("") == ""


@pytest.mark.parametrize("text", ["", "{}", "[]", '"id"', "v1"])
def test_a_damaged_checkpoint_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "metadata").write_text(text)
    with pytest.raises(MqSparkError, match="metadata has no id of a query"):
        _query_id(str(tmp_path))
