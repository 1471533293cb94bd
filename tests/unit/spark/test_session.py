"""Settings of a session: ours, and those of its user."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from mq_spark.errors import MqSparkError
from mq_spark.session import choose_python, merged, session
from tests.support.raft_cluster import free_port

JAVA_OPTIONS = "spark.driver.extraJavaOptions"


def test_workers_of_this_machine_are_of_this_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "")  # to have it as it is when the test is over
    monkeypatch.delenv("PYSPARK_PYTHON")
    choose_python("local[2]")
    assert os.environ["PYSPARK_PYTHON"] == sys.executable


def test_on_a_cluster_python_is_called_by_name_and_here_it_is_this_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "/bin")
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    choose_python("spark://10.0.0.1:7077")
    assert os.environ["PATH"] == f"{Path(sys.executable).parent}:/bin"
    assert "PYSPARK_PYTHON" not in os.environ


def test_a_python_that_the_user_has_chosen_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/bin")
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/python")
    for master in ("local[*]", "spark://10.0.0.1:7077"):
        choose_python(master)
    assert (os.environ["PYSPARK_PYTHON"], os.environ["PATH"]) == ("/opt/python", "/bin")


def test_a_session_has_short_errors_and_utc() -> None:
    conf = merged({})
    assert conf["spark.sql.session.timeZone"] == "UTC"
    assert conf["spark.sql.execution.pyspark.udf.hideTraceback.enabled"] == "true"
    assert "-Xss8m" in conf[JAVA_OPTIONS]


def test_settings_of_the_user_win_and_others_stay() -> None:
    conf = merged({"spark.sql.session.timeZone": "Europe/Oslo", "spark.ui.enabled": "false"})
    ours = merged({})
    changed = {key for key in conf if conf[key] != ours.get(key)}
    assert changed == {"spark.sql.session.timeZone", "spark.ui.enabled"}
    assert conf["spark.sql.session.timeZone"] == "Europe/Oslo"
    assert set(ours) < set(conf)


def test_options_of_java_come_behind_ours_since_java_takes_the_last() -> None:
    ours = merged({})[JAVA_OPTIONS]
    assert merged({JAVA_OPTIONS: "-Xss64m -Da=b"})[JAVA_OPTIONS] == f"{ours} -Xss64m -Da=b"
    # What was merged once is not kept for the next session.
    assert merged({})[JAVA_OPTIONS] == ours


def test_an_address_where_no_server_of_spark_connect_is_is_told_at_once() -> None:
    with pytest.raises(MqSparkError, match="no answer; is a server of Spark Connect running"):
        session(remote=f"sc://127.0.0.1:{free_port()}")


@pytest.mark.parametrize("remote", ["10.0.0.1", "spark://10.0.0.1:7077", "sc://a:b", "sc://"])
def test_an_address_that_is_none_of_spark_connect_is_refused(remote: str) -> None:
    with pytest.raises(MqSparkError, match=r"is not like sc://HOST:15002"):
        session(remote=remote)
