"""What a replica tells about itself, for metrics and people. Reading it changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mq.raft.contracts import Follower, Status
from mq.raft.hooks import Role

if TYPE_CHECKING:
    from mq.raft.changes import Changes
    from mq.raft.engine import Engine
    from mq.raft.replica import Replica


def status_of(replica: Replica, changes: Changes, applied_index: int) -> Status:
    engine, log, members = replica.engine, replica.log, replica.members
    leads = engine is not None and engine.role == Role.LEADER
    must_catch_up = replica.vote.must_catch_up
    return Status(
        leadership=replica.leadership,
        members=dict(members),
        first_index=log.first_index,
        last_index=log.last_index,
        durable_index=engine.journal.durable_index if engine else 0,
        commit_index=engine.commit_index if engine else 0,
        applied_index=applied_index,
        waiting=replica.waiting,
        elections_total=engine.elections_total if engine else 0,
        must_catch_up=must_catch_up,
        followers=[
            _follower(engine, node_id, address)
            for node_id, address in sorted(members.items())
            if engine is not None and leads and node_id != replica.node_id
        ],
        failure=str(replica.failure) if replica.failure else None,
        is_voter=engine is not None and replica.node_id in members and not must_catch_up,
        joining=_joining(engine, changes) if engine is not None and leads else None,
    )


def _follower(engine: Engine, node_id: str, address: str) -> Follower:
    return Follower(
        node_id,
        address,
        engine.match_index(node_id),
        is_connected=engine.is_connected(node_id),
        is_voter=engine.is_healthy(node_id),
    )


def _joining(engine: Engine, changes: Changes) -> Follower | None:
    learner_id = changes.learner_id
    if learner_id is None:
        return None
    return _follower(engine, learner_id, changes.learner_address()[learner_id])
