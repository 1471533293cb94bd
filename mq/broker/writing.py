"""How the broker's own entries get into the log."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from mq.broker.contracts import Consensus
from mq.broker.state.machine import Written
from mq.store.batch import encode_payload
from mq.store.format import Kind
from mq.wire.v1.state_pb2 import Command


async def write(consensus: Consensus, written: Written) -> None:
    """One entry: the batches and the command, all or nothing. Applied here when this returns;
    raises as `Consensus.propose`.
    """
    command = written.command.SerializeToString() if written.command is not None else b""
    if written.batches:
        payload = encode_payload(written.batches, command)
        await consensus.propose(Kind.MESSAGES, payload, written)
    else:
        await consensus.propose(Kind.COMMAND, [command], written)


async def to_its_end(writing: Coroutine[Any, Any, None]) -> None:
    """Whoever asked may give up: also then this lasts until the entry is applied or lost. For who
    holds a lock meanwhile: the next one must not decide on a state that is about to change.
    """
    entry = asyncio.ensure_future(writing)
    try:
        await asyncio.shield(entry)
    except asyncio.CancelledError:
        await asyncio.wait([entry])
        raise


async def write_command(consensus: Consensus, command: Command) -> None:
    await write(consensus, Written(command=command))
