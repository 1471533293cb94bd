"""`--watch`: pictures that follow each other, troubles that pass and those that do not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mq.cli.topics import topic
from mq.cli.watch import Screen, watch
from mq.errors import TopicNotFound, Unreachable
from mq.wire.v1 import admin_pb2 as pb
from tests.support.commands import FakeAdmin, run

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mq.cli.watch.time.sleep", lambda _: None)


def rounds(*answers: object) -> Callable[[], None]:
    """Prints each answer, or raises it."""
    left = iter(answers)

    def show() -> None:
        answer = next(left)
        if isinstance(answer, BaseException):
            raise answer
        print(answer)  # noqa: T201

    return show


def test_without_a_terminal_the_pictures_follow_each_other(
    capsys: pytest.CaptureFixture[str],
) -> None:
    watch(rounds("one", "two"), 0.1, 2)
    assert capsys.readouterr().out == "one\ntwo\n"


def test_brokers_that_are_away_do_not_end_it(capsys: pytest.CaptureFixture[str]) -> None:
    watch(rounds("one", Unreachable("no broker answers"), "two"), 0.1, 3)
    seen = capsys.readouterr()
    assert seen.out == "one\ntwo\n"
    assert "UNREACHABLE: no broker answers" in seen.err


def test_an_error_that_will_not_pass_ends_it() -> None:
    with pytest.raises(TopicNotFound):
        watch(rounds("one", TopicNotFound("no such topic")), 0.1, 3)


def test_a_terminal_keeps_the_last_picture_and_cuts_at_its_height(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("LINES", "6")
    with Screen(2.0) as screen:
        screen._is_terminal = True
        screen.draw(rounds("\n".join(map(str, range(10)))))
        drawn = capsys.readouterr().out
        screen.draw(rounds(Unreachable("away")))
        away = capsys.readouterr().out
    lines = [line.partition("\x1b[K")[0] for line in drawn.split("\n")]
    assert lines[1:5] == ["0", "1", "2", "... 7 more lines: a taller terminal shows them"]
    assert "UNREACHABLE: away" in away
    assert "\n0\x1b[K" in away
    assert capsys.readouterr().out.endswith("8\n9\n")


def test_lists_take_watch_and_end_with_an_error_of_their_own() -> None:
    admin = FakeAdmin(list_topics=[pb.TopicSummary(info=pb.TopicInfo(topic="orders"))])
    answers = iter([admin._answers["list_topics"], TopicNotFound("gone")])

    def list_topics(**_: object) -> object:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    result = run(topic, "list", "--watch", admin=FakeAdmin(list_topics=list_topics))
    assert result.exit_code == 1
    assert "orders" in result.stdout
    assert result.stderr.endswith("TOPIC_NOT_FOUND: gone\n")
