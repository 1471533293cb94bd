"""How the broker's own entries get into the log."""

from __future__ import annotations

import asyncio

from mq.broker.contracts import Consensus
from mq.broker.machine import Written
from mq.store.batch import encode_payload
from mq.store.format import Kind
from mq.wire.v1.state_pb2 import Command


async def write(consensus: Consensus, written: Written) -> None:
    """One entry: the batches and the command, all or nothing. Applied here when this returns;
    raises as `Consensus.propose`.

    Whoever asked may give up: also then this lasts until the entry is applied or lost, so that no
    lock is let go of before and nobody decides on a state that is about to change.
    """
    command = written.command.SerializeToString() if written.command is not None else b""
    if written.batches:
        payload = encode_payload(written.batches, command)
        proposed = consensus.propose(Kind.MESSAGES, payload, written)
    else:
        proposed = consensus.propose(Kind.COMMAND, [command], written)
    entry = asyncio.ensure_future(proposed)
    try:
        await asyncio.shield(entry)
    except asyncio.CancelledError:
        await asyncio.wait([entry])
        raise


async def write_command(consensus: Consensus, command: Command) -> None:
    await write(consensus, Written(command=command))
