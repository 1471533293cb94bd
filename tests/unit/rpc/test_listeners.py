"""The address that a client is told, by the listener that it came in by."""

from __future__ import annotations

import contextvars
from typing import TYPE_CHECKING, Any

import pytest

from mq.errors import IllegalRequest, NotLeader
from mq.rpc import listeners
from mq.rpc.status import wire_status

if TYPE_CHECKING:
    from collections.abc import Callable


def outside(call: Callable[..., Any], *arguments: object) -> Any:
    """As for a client that came by the external listener."""

    def run() -> Any:
        listeners.IS_EXTERNAL.set(True)
        return call(*arguments)

    return contextvars.copy_context().run(run)


@pytest.mark.parametrize(
    ("address", "external", "inside_one", "outside_one"),
    [("in:1", "out:1", "in:1", "out:1"), ("in:1", "", "in:1", "in:1"), ("", "", "", "")],
)
def test_the_address_is_that_of_the_listener(
    address: str, external: str, inside_one: str, outside_one: str
) -> None:
    assert listeners.chosen(address, external) == inside_one
    assert outside(listeners.chosen, address, external) == outside_one
    assert listeners.chosen(address, external) == inside_one


def test_error_texts_name_the_leader_by_the_address_of_the_listener() -> None:
    error = NotLeader("n1", "in:1", "out:1")
    inside, external = wire_status(error), outside(wire_status, error)
    assert (inside.leader_address, external.leader_address) == ("in:1", "out:1")
    assert ("in:1" in inside.text, "out:1" in inside.text) == (True, False)
    assert ("in:1" in external.text, "out:1" in external.text) == (False, True)
    assert outside(wire_status, NotLeader("n1", "in:1")).leader_address == "in:1"
    assert outside(wire_status, NotLeader(None, None)).leader_address == ""
    assert outside(wire_status, IllegalRequest("no")).leader_address == ""
