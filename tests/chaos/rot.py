"""Bits that flip in the files of brokers, and the proof that the brokers mended them.

A fault flips bits, makes brokers read what is damaged, and waits until every byte on the disk is
again what it was, nothing is open in `BrokerStatus.damages` and nothing was given up as lost. What
is flipped is what the broker promises to mend, and no more (docs/STORAGE.md):

    log       a segment is damaged on one node of a set at a time: the others have it
    derived   ConsumeQueue, key index, checkpoint, .idx: on any number of nodes, the log has it all
    vote      some of the eight copies in a slot
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, NamedTuple

from mq.wire.v1.admin_pb2 import LogChunk, ReadLogRequest
from mq.wire.v1.consumer_pb2 import PullRequest, PullResponse
from tests.chaos import engine as questions

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from tests.chaos.checker import Ledger
    from tests.chaos.engine import Engine

_FLIPS_MAX = 3
_SEGMENT, _QUEUES, _INDEX = "commitlog/", "consumequeue/", "index/"
_IDX_HEADER_BYTES, _IDX_SYNCED_AT = 40, 24
_INDEX_HEADER_BYTES = 44
_UNIT_BYTES, _BLOCK_UNITS = 20, 256
_BLOCK_BYTES = _UNIT_BYTES * _BLOCK_UNITS + 4
_VOTE_SECTOR_BYTES, _VOTE_SECTORS, _VOTE_RECORD_BYTES = 512, 8, 26
_REBUILT = "queues and index are rebuilt from the log"
# What a node says that has made them again at its start. A queue's file may not count yet.
_SAID = {
    "vote": "vote written again",
    "idx": ".idx written again from the log",
    "checkpoint": _REBUILT,
    "index": _REBUILT,
    "queue": "",
}
# Of the newest segment: less than that may not be committed yet.
_NEWEST_BYTES_MIN = 64 << 10


class Flip(NamedTuple):
    file: str
    position: int


class Segment(NamedTuple):
    file: str
    size: int

    @property
    def base(self) -> int:
        return int(self.file.removeprefix(_SEGMENT).removesuffix(".log"))

    @property
    def idx(self) -> str:
        return self.file.removesuffix(".log") + ".idx"


class Rot:
    """The flips of one fault: `flip`, then `wait_mended`."""

    def __init__(self, engine: Engine, rng: random.Random, ledger: Ledger) -> None:
        self._engine = engine
        self._rng = rng
        self._ledger = ledger
        # What stood there.
        self._flipped: dict[str, dict[Flip, str]] = defaultdict(dict)
        self._kinds: dict[str, Counter[str]] = defaultdict(Counter)
        self._restarted: set[str] = set()

    def flip(self, node: str, kind: str, flips: Iterable[Flip]) -> None:
        wanted = [one for one in set(flips) if one not in self._flipped[node]]
        places = [(one.file, one.position, self._rng.randrange(8)) for one in wanted]
        before = self._engine.at_disk(node, "flip", places)
        self._flipped[node].update(zip(wanted, before, strict=True))
        self._ledger.rotted[kind] += len(wanted)
        self._kinds[node][kind] += len(wanted)

    def restarted(self, *nodes: str) -> None:
        """They know nothing any more of what they found before."""
        self._restarted.update(nodes)

    def wait_mended(self, read: Callable[[str], None]) -> None:
        """`read` makes a node look at what is damaged."""

        def is_mended(node: str) -> bool:
            read(node)
            status = questions.status(self._engine, node)
            if status is None or status.open_damages or not status.is_ready:
                return False
            found = {one.file for one in status.damages if one.mended_at_ms}
            lost = [one.affected for one in status.damages if one.is_lost]
            if lost:
                raise AssertionError(f"{node} has given up what others have: {lost}")
            is_told = node in self._restarted or all(
                any(path.endswith(one.file.replace(".idx", ".log")) for path in found)
                for one in self._flipped[node]
            )
            return is_told and not self._differing(node)

        for node in self._flipped:
            questions.wait(
                lambda node=node: is_mended(node),  # type: ignore[misc]
                f"{node} has mended {sorted(self._flipped[node])}",
            )
            self._ledger.mended += self._kinds[node]

    def _differing(self, node: str) -> list[Flip]:
        flipped = self._flipped[node]
        places = [(one.file, one.position, 1) for one in flipped]
        now = self._engine.at_disk(node, "read", places)
        return [one for one, byte in zip(flipped, now, strict=True) if byte != flipped[one]]

    # -- the log -----------------------------------------------------------------------------------

    def sealed(self, broker_set: str, newer_bytes: int = 0) -> list[Segment]:
        """The segments that every node of the set has sealed, with at least so much of the log
        behind them.
        """
        listed = [
            self._engine.at_disk(node, "files").items() for node in self._engine.sets[broker_set]
        ]
        common = set.intersection(*(set(one) for one in listed))
        found = sorted(Segment(*one) for one in common if _is_segment(one[0]))
        last = max(name for one in listed for name, _ in one if _is_segment(name))
        end = found[-1].base + found[-1].size if found else 0
        return [one for one in found if one.file < last and one.base + one.size + newer_bytes < end]

    def segment_flips(self, segment: Segment) -> list[Flip]:
        """In the middle of the segment: a start looks at its ends."""
        low, high = segment.size // 4, 3 * segment.size // 4
        count = self._rng.randint(1, _FLIPS_MAX)
        return [Flip(segment.file, self._rng.randrange(low, high)) for _ in range(count)]

    def idx_flips(self, node: str, segment: Segment) -> list[Flip]:
        """In its records: the header is read at a start alone."""
        size = self._engine.at_disk(node, "files")[segment.idx]
        return [Flip(segment.idx, self._rng.randrange(_IDX_HEADER_BYTES, size))]

    def newest_flips(self, node: str) -> list[Flip]:
        """In what is synced of the segment that is being written; none while that is little."""
        newest = Segment(max(filter(_is_segment, self._engine.at_disk(node, "files"))), 0)
        (mark,) = self._engine.at_disk(node, "read", [(newest.idx, _IDX_SYNCED_AT, 8)])
        synced = int.from_bytes(bytes.fromhex(mark), "little")
        if synced < _NEWEST_BYTES_MIN:
            return []
        return [Flip(newest.file, self._rng.randrange(synced // 2))]

    def read_log(self, node: str) -> None:
        """The segments that were damaged there."""
        for file in {one.file for one in self._flipped[node]}:
            base = Segment(file.replace(".idx", ".log"), 0).base
            at, end = base, base + 1
            while at < end:
                request = ReadLogRequest(log_offset=at)
                chunk = questions.ask(
                    self._engine, node, "AdminService/ReadLog", request, LogChunk.FromString
                )
                if chunk is None or chunk.segment_offset != base or not chunk.data:
                    break
                at = end = chunk.next_offset
                end += chunk.next_offset == chunk.log_offset + len(chunk.data)

    # -- what is derived from it -------------------------------------------------------------------

    def queue_flips(self, node: str, topics: Sequence[str]) -> list[Flip]:
        """In complete blocks of queues: what is not complete may be in memory alone."""
        found = [
            (file, size // _BLOCK_BYTES * _BLOCK_BYTES)
            for file, size in self._engine.at_disk(node, "files").items()
            if file.startswith(_QUEUES) and file.split("/")[1] in topics and size >= _BLOCK_BYTES
        ]
        chosen = self._rng.sample(found, min(len(found), _FLIPS_MAX))
        return [Flip(file, self._rng.randrange(end)) for file, end in chosen]

    def read_queues(self, node: str) -> None:
        for file, position in self._flipped[node]:
            _, topic, queue_id, first = file.split("/")
            unit = int(first) + position // _BLOCK_BYTES * _BLOCK_UNITS
            # The one from a leader, the other from one that follows.
            for any_replica in (False, True):
                request = PullRequest(
                    topic=topic,
                    queue_id=int(queue_id),
                    queue_offset=unit,
                    messages_max=1,
                    any_replica=any_replica,
                )
                questions.ask(
                    self._engine, node, "ConsumerService/Pull", request, PullResponse.FromString
                )

    def index_flips(self, node: str) -> list[Flip]:
        """In files that are full: all but the newest."""
        listed = self._engine.at_disk(node, "files").items()
        *full, _ = [("", 0), *sorted(one for one in listed if one[0].startswith(_INDEX))]
        chosen = self._rng.sample(full[1:], min(len(full[1:]), _FLIPS_MAX))
        return [Flip(file, self._rng.randrange(_INDEX_HEADER_BYTES, size)) for file, size in chosen]

    # -- what a start reads ------------------------------------------------------------------------

    def harm_stopped(self, node: str) -> list[str]:
        """Harms files of a node that does not run. Returns what its log says when it has made them
        again.
        """
        listed: Mapping[str, int] = self._engine.at_disk(node, "files")
        # Of the newest of each kind it is not known how much of them counts.
        idx = sorted(file for file in listed if file.endswith(".idx"))[:-1]
        index = sorted(file for file in listed if file.startswith(_INDEX))[:-2]
        queues = sorted(file for file in listed if file.startswith(_QUEUES))
        harms = {"vote": ["vote"], "checkpoint": ["checkpoint"] * ("checkpoint" in listed)}
        harms |= {"idx": idx, "index": index, "queue": queues}
        possible = [kind for kind, files in harms.items() if files]
        said: set[str] = set()
        for kind in self._rng.sample(possible, self._rng.randint(1, len(possible))):
            file = self._rng.choice(harms[kind])
            self._kinds[node][f"{kind} at rest"] += 1
            if kind == "vote":
                self._flip_copies(node, file)
            elif kind == "index":
                # Of its header: what else is damaged there is found when it is read.
                self._flip_at_rest(node, file, self._rng.randrange(_INDEX_HEADER_BYTES))
            elif self._rng.random() < 0.5:
                self._engine.at_disk(node, "remove", [file])
            elif kind == "checkpoint":
                self._flip_at_rest(node, file, self._rng.randrange(listed[file]))
            else:
                self._engine.at_disk(node, "cut", [(file, self._rng.randrange(listed[file]))])
            said.add(_SAID[kind])
        self._ledger.rotted += self._kinds[node]
        return sorted(said - {""})

    def check_made_again(self, node: str, said: Iterable[str]) -> None:
        """By the word of the node, which is well."""
        logs = self._engine.logs(node)
        if missing := [text for text in said if text not in logs]:
            raise AssertionError(f"{node} has started without a word of {missing}")
        self._ledger.mended += self._kinds[node]

    def _flip_copies(self, node: str, file: str) -> None:
        """Of the eight copies in a slot one at least stays."""
        slot = self._rng.randrange(2)
        sectors = self._rng.sample(range(_VOTE_SECTORS), self._rng.randint(1, _VOTE_SECTORS - 1))
        for sector in sectors:
            at = (slot * _VOTE_SECTORS + sector) * _VOTE_SECTOR_BYTES
            self._flip_at_rest(node, file, at + self._rng.randrange(_VOTE_RECORD_BYTES))

    def _flip_at_rest(self, node: str, file: str, position: int) -> None:
        self._engine.at_disk(node, "flip", [(file, position, self._rng.randrange(8))])


def _is_segment(file: str) -> bool:
    return file.startswith(_SEGMENT) and file.endswith(".log")


def spread(
    rng: random.Random, segments: Sequence[Segment], nodes: Sequence[str]
) -> list[tuple[str, Segment]]:
    """A segment of its own for each node, as far as there are enough."""
    chosen = rng.sample(segments, min(len(segments), len(nodes)))
    return list(zip(rng.sample(nodes, len(nodes)), chosen, strict=False))
