"""The listener through which a client is connected, and so the addresses that it is told.

A broker in a container is reached by one address from its neighbours and by another from outside.
Each call runs in a task of its own, so that what is set here is seen by all that the call does.
"""

from __future__ import annotations

from contextvars import ContextVar

IS_EXTERNAL: ContextVar[bool] = ContextVar("IS_EXTERNAL", default=False)


def chosen(address: str, external: str) -> str:
    """The address of a broker that this client can connect to."""
    return external if external and IS_EXTERNAL.get() else address
