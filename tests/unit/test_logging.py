"""The form of a log line, for each output, from our loggers and from foreign ones."""

from __future__ import annotations

import io
import json
import logging
import re
import sys
import warnings
from typing import TYPE_CHECKING, Any

import pytest

from mq.logging import RateLimit, configure, get_logger

if TYPE_CHECKING:
    from collections.abc import Iterator

ESCAPE = "\x1b["
BODY = "a message body"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    """`configure` owns the process; the tests after this one get theirs back."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)


Captured = pytest.CaptureFixture[str]


def json_lines(captured: Captured) -> list[dict[str, Any]]:
    return [json.loads(line) for line in captured.readouterr().err.splitlines()]


def test_a_json_line_holds_time_level_logger_event_and_fields_in_this_order(
    capsys: Captured,
) -> None:
    configure("info", "json")
    get_logger("mq.store").warning("torn tail cut", file="0.log", bytes=12)
    (line,) = json_lines(capsys)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line.pop("timestamp"))
    assert list(line.items()) == [
        ("level", "warning"),
        ("logger", "mq.store"),
        ("event", "torn tail cut"),
        ("file", "0.log"),
        ("bytes", 12),
    ]


def test_the_timestamp_is_utc_with_milliseconds(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure("info", "json")
    monkeypatch.setattr("time.time", lambda: 1_700_000_000.25)
    monkeypatch.setattr("time.time_ns", lambda: 1_700_000_000_250_000_000)  # from Python 3.13 on
    get_logger("mq").info("x")
    assert json_lines(capsys)[0]["timestamp"] == "2023-11-14T22:13:20.250Z"


def test_auto_is_json_without_a_terminal_and_console_with_one(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = get_logger("mq")
    configure("info", "auto")
    log.info("to a pipe")
    assert json_lines(capsys)[0]["event"] == "to a pipe"
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    configure("info", "auto")
    log.info("to a screen")
    assert "to a screen" in screen.getvalue()
    assert not screen.getvalue().startswith("{")


def test_colours_are_for_terminals_only(capsys: Captured) -> None:
    configure("info", "console")
    get_logger("mq").info("plain", file="0.log")
    text = capsys.readouterr().err
    assert ESCAPE not in text
    assert re.search(r"\[info +\] plain +\[mq\] file=0\.log\n$", text)


def test_a_terminal_has_colours_unless_it_says_no(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.delenv("NO_COLOR", raising=False)
    configure("info", "auto")
    get_logger("mq").info("bright")
    assert ESCAPE in terminal.getvalue()
    terminal.truncate(0)
    monkeypatch.setenv("NO_COLOR", "1")
    configure("info", "auto")
    get_logger("mq").info("plain")
    assert ESCAPE not in terminal.getvalue()


def test_lines_below_the_level_are_dropped(capsys: Captured) -> None:
    configure("warning", "json")
    log = get_logger("mq")
    log.info("quiet")
    log.error("loud")
    assert [line["event"] for line in json_lines(capsys)] == ["loud"]


def test_a_logger_made_and_used_before_follows_a_later_configuration(capsys: Captured) -> None:
    log = get_logger("mq.early")
    configure("error", "json")
    log.info("dropped")
    configure("debug", "json")
    log.debug("kept")
    assert [line["event"] for line in json_lines(capsys)] == ["kept"]


def test_the_standard_library_s_loggers_pass_through_the_same_handler(capsys: Captured) -> None:
    configure("info", "json")
    logging.getLogger("grpc").error("lost %s after %d ms", "peer", 5)
    (line,) = json_lines(capsys)
    assert (line["level"], line["logger"]) == ("error", "grpc")
    assert line["event"] == "lost peer after 5 ms"


def test_warnings_are_log_lines(capsys: Captured) -> None:
    configure("info", "json")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("old API", stacklevel=1)
    (line,) = json_lines(capsys)
    assert (line["level"], line["logger"]) == ("warning", "py.warnings")
    assert "old API" in line["event"]


@pytest.mark.parametrize("logger", [get_logger("ours"), logging.getLogger("foreign")])
def test_an_exception_is_part_of_its_json_line(capsys: Captured, logger: Any) -> None:
    configure("info", "json")
    fail_and_log(logger)
    (line,) = json_lines(capsys)
    assert line["event"] == "sync failed"
    assert line["exception"].startswith("Traceback (most recent call last):")
    assert line["exception"].endswith("OSError: no room")


@pytest.mark.parametrize("logger", [get_logger("ours"), logging.getLogger("foreign")])
def test_a_console_traceback_shows_no_local_variables(capsys: Captured, logger: Any) -> None:
    configure("info", "console")
    fail_and_log(logger)
    text = capsys.readouterr().err
    assert "OSError: no room" in text
    assert BODY not in text


def fail_and_log(logger: Any) -> None:
    try:
        fail(BODY)
    except OSError:
        logger.exception("sync failed")


def fail(body: str) -> None:
    raise OSError("no room" if body else "")


def test_values_that_json_does_not_know_are_shown_as_python_shows_them(capsys: Captured) -> None:
    configure("info", "json")
    get_logger("mq").info("x", raw=b"\x00", problem=ValueError("bad"))
    (line,) = json_lines(capsys)
    assert line["raw"] == "b'\\x00'"
    assert line["problem"] == "ValueError('bad')"


def test_bound_fields_are_on_every_line(capsys: Captured) -> None:
    configure("info", "json")
    get_logger("mq").bind(queue=3).info("read")
    assert json_lines(capsys)[0]["queue"] == 3


def test_a_second_configuration_replaces_the_first(capsys: Captured) -> None:
    configure("info", "json")
    configure("info", "json")
    get_logger("mq").info("once")
    assert len(json_lines(capsys)) == 1


def test_lines_that_strangers_cause_are_few_and_the_next_one_says_how_many_were_left_out() -> None:
    now_s = [100.0]
    lines = RateLimit(2, 60.0, lambda: now_s[0])
    assert [lines.admit() for _ in range(5)] == [True, True, False, False, False]
    now_s[0] += 59.9
    assert not lines.admit()
    now_s[0] += 0.1
    assert lines.admit()
    assert lines.omitted() == {"omitted_lines": 4}
    assert lines.admit()
    assert lines.omitted() == {}
    assert not lines.admit()
