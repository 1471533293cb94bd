"""Settings of a session: ours, and those of its user."""

from __future__ import annotations

import sys

from mq_spark.session import merged

JAVA_OPTIONS = "spark.driver.extraJavaOptions"


def test_a_session_has_workers_of_this_interpreter_short_errors_and_utc() -> None:
    conf = merged({})
    assert conf["spark.pyspark.python"] == sys.executable
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
