"""The promise that outlives a crash: the term a node has seen, and its vote in that term.

The file `<data>/vote` has two slots of 4,096 bytes, written in turn, and each slot has the same
record in each of its eight sectors of 512 bytes:

      0        4        8          16         24       25       26
      +--------+--------+----------+----------+--------+--------+------------------
      | magic  | crc32  | sequence |   term   | must   | length | node id, UTF-8
      |"MQV\\1" |        | number   |          |catch up|        | (length bytes)
      +--------+--------+----------+----------+--------+--------+------------------
                        |<------------------- crc32 covers -------------------->

Integers are little-endian; a length of 0 is no vote. Slot i takes the even or odd sequence numbers.
The file is made once, at its full size, and overwritten in place from then on: a full disk does not
keep a node from voting, and the slot that is not being written has the record before.

Detected damage: a write that a crash tears leaves old and new sectors in its slot, each of them
intact: the newest intact record of all counts, whether or not its `save` had returned, and what was
saved is never missing from it. A flipped bit, or any damage that spares one of the eight sectors,
costs nothing, because all eight have what was saved. A slot without any intact record cannot come
from a crash: it may have been the newest, and going back to the other one could vote twice in one
term. So it is refused. Not detected: a disk that loses a whole write which it had called durable,
and a file that is put back from a backup or deleted: both look like an earlier moment.

A vote, or the statement that an entry is on disk, binds a node for good; one that has forgotten it
may help to elect a leader without an entry that was acknowledged. `must_catch_up` marks a node that
may have forgotten something; `VoteTrust` sets it, and lifts it when the node has all that was
committed.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from typing import NamedTuple

from isal.isal_zlib import crc32

from mq.errors import DiskFull, LogDamaged, MqError, StorageFailed
from mq.logging import get_logger
from mq.raft.raft_log import FIRST_INDEX
from mq.store.commitlog import CommitLog
from mq.store.format import HEADER_BYTES, decode_header
from mq.store.vfs import File, Vfs, is_shortage, shortage, write_file_atomically
from mq.wire.v1.raft_pb2 import RaftFrame

log = get_logger(__name__)

MAGIC = b"MQV\x01"
_HEADER = struct.Struct("<4sIQQBB")
_CRC = struct.Struct("<I")
_CRC_AT = 4
_COVERED_FROM = 8
SECTOR_BYTES = 512
SLOT_BYTES = 4096
_SLOTS = 2
_SECTORS = range(0, SLOT_BYTES, SECTOR_BYTES)
NODE_ID_BYTES_MAX = 127
_ADVICE = "Restore the file, or remove the node's data and let it join again"


class Vote(NamedTuple):
    sequence: int
    term: int
    voted_for: str | None
    must_catch_up: bool


def encode(vote: Vote) -> bytes:
    """A slot. ValueError: not a node id."""
    node_id = b"" if vote.voted_for is None else vote.voted_for.encode()
    if vote.voted_for is not None and not 1 <= len(node_id) <= NODE_ID_BYTES_MAX:
        raise ValueError(f"a node id has 1 to {NODE_ID_BYTES_MAX} bytes, not {len(node_id)}")
    fields = vote.sequence, vote.term, int(vote.must_catch_up), len(node_id)
    record = bytearray(_HEADER.pack(MAGIC, 0, *fields) + node_id)
    _CRC.pack_into(record, _CRC_AT, crc32(memoryview(record)[_COVERED_FROM:]))
    return bytes(record).ljust(SECTOR_BYTES, b"\0") * (SLOT_BYTES // SECTOR_BYTES)


def decode(sector: bytes) -> Vote | None:
    """None when no intact record stands here."""
    if len(sector) < _HEADER.size:
        return None
    magic, crc, sequence, term, must_catch_up, length = _HEADER.unpack_from(sector)
    end = _HEADER.size + length
    if magic != MAGIC or end > len(sector) or crc != crc32(sector[_COVERED_FROM:end]):
        return None
    node_id = sector[_HEADER.size : end].decode() if length else None
    return Vote(sequence, term, node_id, bool(must_catch_up))


def _position(sequence: int) -> int:
    """Of the slot for this sequence number."""
    return sequence % _SLOTS * SLOT_BYTES


class VoteFile:
    """For one thread. What `term`, `voted_for` and `must_catch_up` say is durable."""

    def __init__(self, vfs: Vfs, path: str) -> None:
        """Opens the file, or makes it with term 0 and no vote. LogDamaged: it cannot be trusted.
        DiskFull, StorageFailed: the node cannot start.
        """
        self._path = path
        self._failure: MqError | None = None
        try:
            if not vfs.exists(path):
                first = [encode(Vote(number, 0, None, must_catch_up=False)) for number in range(2)]
                write_file_atomically(vfs, path, first)
            self._file: File = vfs.open(path)
        except OSError as error:
            raise self._unusable(error) from error
        try:
            self._vote, harmed = self._newest()
            self._make_durable(vfs, writes=_SLOTS if harmed else 1)
        except OSError as error:
            self._file.close()
            raise self._unusable(error) from error
        except MqError:
            self._file.close()
            raise

    @property
    def term(self) -> int:
        return self._vote.term

    @property
    def voted_for(self) -> str | None:
        return self._vote.voted_for

    @property
    def must_catch_up(self) -> bool:
        """This node lost what it had promised to keep: it must not vote before it has it again."""
        return self._vote.must_catch_up

    def save(self, term: int, voted_for: str | None, must_catch_up: bool) -> None:  # noqa: FBT001
        """Durable when this returns. ValueError: a term that goes backwards. StorageFailed, from
        then on always: stop the node, it must not send what follows from this.
        """
        if self._failure is not None:
            raise self._failure
        if term < self.term:
            raise ValueError(f"term {term} after term {self.term}")
        if (term, voted_for, must_catch_up) == self._vote[1:]:
            return
        try:
            self._write(Vote(self._vote.sequence + 1, term, voted_for, must_catch_up))
        except OSError as error:
            self._failure = StorageFailed(
                f"{self._path}: {error.strerror or error}. The vote may be saved or not, "
                "so the node has to stop; check the disk"
            )
            raise self._failure from error

    def close(self) -> None:
        self._file.close()

    def _write(self, vote: Vote) -> None:
        self._file.pwritev([encode(vote)], _position(vote.sequence))
        self._file.sync()
        self._vote = vote

    def _make_durable(self, vfs: Vfs, writes: int) -> None:
        """The record is trusted from now on, so it is written once more. It may be in one sector
        only, if a crash tore it; or in the page cache only, if the process ended before its sync,
        or by a sync that failed: then the kernel takes the page for clean, and another sync would
        write nothing. As many writes as slots make both of them whole again.
        """
        vfs.sync_dir(os.path.dirname(self._path) or ".")
        for _ in range(writes):
            self._write(self._vote._replace(sequence=self._vote.sequence + 1))

    def _newest(self) -> tuple[Vote, bool]:
        """And whether some sector has another record than its slot, or none."""
        newest: list[Vote] = []
        harmed: list[int] = []
        for number in range(_SLOTS):
            slot = self._file.pread(SLOT_BYTES, _position(number))
            found = [decode(slot[at : at + SECTOR_BYTES]) for at in _SECTORS]
            # A record in the slot of the other is a write that went astray.
            votes = [
                vote for vote in found if vote is not None and vote.sequence % _SLOTS == number
            ]
            if not votes:
                reason = "no intact record of term and vote stands in this half of the file"
                raise LogDamaged(self._path, _position(number), reason, _ADVICE)
            newest.append(max(votes, key=lambda vote: vote.sequence))
            sectors = zip(_SECTORS, found, strict=True)
            harmed += [_position(number) + at for at, vote in sectors if vote != newest[-1]]
        vote = max(newest, key=lambda vote: vote.sequence)
        if harmed:
            log.warning(
                "vote written again: some of its copies are torn or damaged",
                file=self._path,
                position=harmed[0],
                copies=len(harmed),
                term=vote.term,
                voted_for=vote.voted_for,
            )
        return vote, bool(harmed)

    def _unusable(self, error: OSError) -> MqError:
        """Nothing was promised yet: the node just does not start."""
        text = f"{self._path}: {error.strerror or error}"
        if is_shortage(error):
            return DiskFull(f"{text}: {shortage(error)}; free some, the node needs it to start")
        return StorageFailed(f"{text}. The file cannot be used: check its rights and the disk")


class VoteTrust:
    def __init__(self, node_id: str, commitlog: CommitLog, vote: VoteFile) -> None:
        self._node_id = node_id
        self._log = commitlog
        self._vote = vote

    def check(self, members: Mapping[str, str]) -> None:
        """At start. A node that is alone has no other to learn from."""
        vote, commitlog = self._vote, self._log
        if len(members) <= 1:
            self._mark("", must_catch_up=False)
        elif commitlog.last_term > vote.term:
            self._mark("the vote file was lost")
        elif commitlog.recovery.synced_bytes_lost:
            self._mark("the log has lost entries that had been synced")

    def notice(self, message: RaftFrame) -> None:
        """Before each message is handled. A new node that hears of a history may have been part of
        it with another disk; in a group that is new as a whole it takes part in the first election
        before it hears of any.
        """
        vote = self._vote
        if vote.term == 0 < message.term and self._log.last_index == FIRST_INDEX:
            kind = message.WhichOneof("content")
            is_history = True
            if kind == "vote_request":
                is_history = message.vote_request.last_index > FIRST_INDEX
            elif kind == "pre_vote_request":
                is_history = message.pre_vote_request.last_index > FIRST_INDEX
            if is_history:
                self._mark("the data directory is new, but the broker set is not")

    def genesis_crc(self) -> int:
        """Checksum of entry 1, which has the first members; 0 when the log does not have it."""
        commitlog = self._log
        if commitlog.last_index < FIRST_INDEX or commitlog.first_index != FIRST_INDEX:
            return 0
        header = decode_header(commitlog.read(commitlog.start_offset, HEADER_BYTES))
        return header.crc if header else 0

    def revoke(self, term: int) -> None:
        """The log is about to start over: until it is complete, this node is not trusted. Durable
        when this returns.
        """
        vote = self._vote
        voted_for = vote.voted_for if term == vote.term else None
        vote.save(term, voted_for, must_catch_up=True)

    def restore(self, term: int) -> None:
        """This node has all that was committed. Durable when this returns."""
        self._vote.save(term, self._vote.voted_for, must_catch_up=False)
        log.info("caught up: this node votes again", node=self._node_id, term=term)

    def _mark(self, reason: str, *, must_catch_up: bool = True) -> None:
        vote = self._vote
        if vote.must_catch_up != must_catch_up:
            term = max(vote.term, self._log.last_term)
            vote.save(term, vote.voted_for, must_catch_up=must_catch_up)
            if must_catch_up:
                log.warning(
                    "this node does not vote until it has caught up",
                    node=self._node_id,
                    reason=reason,
                )
