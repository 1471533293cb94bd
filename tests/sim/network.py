"""A seeded network: one connection a pair of nodes, with everything that may happen to it.

A connection delivers in order, apart from copies (`duplicate`) that come late. Frames are lost one
by one, delayed, or lost by direction (`cut`: an asymmetric partition, which the ends notice only
by silence). Connections of different pairs know nothing of each other's order. What was sent on a
connection that is gone is never delivered.

Frames travel as bytes, so that nodes share no objects.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from mq.raft.frames import Frame, encode
from mq.wire.v1.raft_pb2 import RaftFrame

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Mapping

IDLE_TIMEOUT_S = 3.5


@dataclass(slots=True)
class Weather:
    """The present state of the network."""

    loss: float = 0.0
    duplicate: float = 0.0
    delay_s: float = 0.001
    jitter_s: float = 0.002


class Wire(NamedTuple):
    """The state of one connection, in one direction."""

    epoch: int
    arrives_s: float


class Sent(NamedTuple):
    """A frame that was sent, whether or not it arrived."""

    at_s: float
    sender: str
    receiver: str
    frame: Frame

    @property
    def kind(self) -> str | None:
        kind: str | None = self.frame.message.WhichOneof("content")
        return kind


class Endpoint(Protocol):
    """A node, as the network sees it."""

    name: str
    peers: Mapping[str, str]

    def connected(self, peer_id: str) -> None: ...
    def disconnected(self, peer_id: str, *, was_lost: bool) -> None: ...
    def receive(self, peer_id: str, frame: Frame) -> None: ...
    def writable(self) -> None: ...


class Network:
    def __init__(
        self,
        rng: random.Random,
        now_s: Callable[[], float],
        schedule: Callable[[float, Callable[[], None]], None],
        *,
        buffer_bytes: int = 1 << 16,
    ) -> None:
        self.weather = Weather()
        # More delay, for one direction of one connection.
        self.slow_s: dict[tuple[str, str], float] = {}
        self._rng = rng
        self._now_s = now_s
        self._schedule = schedule
        self._buffer_bytes = buffer_bytes
        self._up: dict[str, Endpoint] = {}
        self._cut: set[tuple[str, str]] = set()
        self._epochs: dict[frozenset[str], int] = {}  # of open connections
        self._last_epoch = 0
        self._arrivals: dict[tuple[str, str], float] = {}
        self._in_flight: dict[tuple[str, str], int] = {}
        self._heard: dict[tuple[str, str], float] = {}
        self.bytes_in_flight_max = 0
        self.frames_sent = self.frames_lost = self.frames_copied = 0
        # For tests that look at all frames, or deliver some of them again.
        self.record: list[Sent] | None = None

    # -- what happens to it ------------------------------------------------------------------------

    def cut(self, sender: str, receiver: str) -> None:
        """Nothing gets from one to the other; the connection stays until an end notices."""
        self._cut.add((sender, receiver))

    def heal(self) -> None:
        self._cut.clear()
        self.slow_s.clear()
        self.weather = Weather()

    def start(self, endpoint: Endpoint) -> None:
        self._up[endpoint.name] = endpoint

    def stop(self, name: str, *, is_silent: bool) -> None:
        """The process is gone. `is_silent`: and so is its machine, which resets no connection."""
        self._up.pop(name, None)
        for pair in [pair for pair in self._epochs if name in pair]:
            epoch = self._epochs[pair]
            (other,) = pair - {name}
            delay_s = IDLE_TIMEOUT_S if is_silent else self._delay_s()
            self._schedule(delay_s, lambda o=other, p=pair, e=epoch: self._lost(o, name, p, e))  # type: ignore[misc]

    def connect_all(self) -> None:
        """Called now and then: connects all pairs that may be connected."""
        names = sorted(self._up)
        for i, first in enumerate(names):
            for second in names[i + 1 :]:
                self._connect(first, second)
        self._notice_silence()

    def drop(self, first: str, second: str) -> None:
        """The connection breaks, for both ends."""
        pair = frozenset((first, second))
        epoch = self._epochs.pop(pair, None)
        if epoch is not None:
            for end, other in ((first, second), (second, first)):
                if end in self._up:
                    self._up[end].disconnected(other, was_lost=True)

    def deliver_again(self, sent: Sent) -> None:
        """A copy of a frame that comes late."""
        self._up[sent.receiver].receive(sent.sender, sent.frame)

    # -- what nodes do -----------------------------------------------------------------------------

    def send(self, sender: str, receiver: str, frame: Frame) -> bool:
        pair = frozenset((sender, receiver))
        epoch = self._epochs.get(pair)
        if epoch is None:
            return False
        data = b"".join(encode(frame))[8:]
        split = len(data) - len(frame.body)
        self.frames_sent += 1
        if self.record is not None:
            self.record.append(Sent(self._now_s(), sender, receiver, _copy(data, split)))
        if (sender, receiver) in self._cut or self._rng.random() < self.weather.loss:
            self.frames_lost += 1
            return True
        way = (sender, receiver)
        delay_s = self._delay_s() + self.slow_s.get(way, 0.0)
        arrives_s = max(self._arrivals.get(way, 0.0), self._now_s() + delay_s)
        self._arrivals[way] = arrives_s
        self._deliver_at(way, epoch, data, split, arrives_s)
        if self._rng.random() < self.weather.duplicate:
            self.frames_copied += 1
            late_s = arrives_s + self._rng.random() * 0.5
            self._deliver_at(way, epoch, data, split, late_s)
        return True

    def has_room(self, sender: str, receiver: str) -> bool:
        return self._in_flight.get((sender, receiver), 0) < self._buffer_bytes

    # -- inside ------------------------------------------------------------------------------------

    def _delay_s(self) -> float:
        return self.weather.delay_s + self._rng.random() * self.weather.jitter_s

    def _deliver_at(
        self, way: tuple[str, str], epoch: int, data: bytes, split: int, arrives_s: float
    ) -> None:
        self._in_flight[way] = self._in_flight.get(way, 0) + len(data)
        self.bytes_in_flight_max = max(self.bytes_in_flight_max, self._in_flight[way])
        self._schedule(arrives_s - self._now_s(), lambda: self._deliver(way, epoch, data, split))

    def _deliver(self, way: tuple[str, str], epoch: int, data: bytes, split: int) -> None:
        sender, receiver = way
        was_full = not self.has_room(sender, receiver)
        self._in_flight[way] -= len(data)
        if self._epochs.get(frozenset(way)) != epoch or way in self._cut:
            return
        self._heard[receiver, sender] = self._now_s()
        if receiver in self._up:
            self._up[receiver].receive(sender, _copy(data, split))
        if was_full and self.has_room(sender, receiver) and sender in self._up:
            self._up[sender].writable()

    def _connect(self, first: str, second: str) -> None:
        pair = frozenset((first, second))
        is_known = second in self._up[first].peers and first in self._up[second].peers
        if not is_known:
            self.drop(first, second)
            return
        is_cut = (first, second) in self._cut or (second, first) in self._cut
        if pair in self._epochs or is_cut:
            return
        self._last_epoch += 1
        self._epochs[pair] = self._last_epoch
        for end, other in ((first, second), (second, first)):
            self._heard[end, other] = self._now_s()
            self._in_flight[end, other] = 0
            self._arrivals[end, other] = 0.0
            self._up[end].connected(other)

    def _notice_silence(self) -> None:
        now_s = self._now_s()
        for pair in sorted(self._epochs, key=sorted):
            first, second = sorted(pair)
            heard_s = min(self._heard[first, second], self._heard[second, first])
            if now_s - heard_s > IDLE_TIMEOUT_S:
                self.drop(first, second)

    def _lost(self, name: str, other: str, pair: frozenset[str], epoch: int) -> None:
        if self._epochs.get(pair) == epoch:
            del self._epochs[pair]
            if name in self._up:
                self._up[name].disconnected(other, was_lost=True)


def _copy(data: bytes, split: int) -> Frame:
    return Frame(RaftFrame.FromString(data[:split]), memoryview(data)[split:])
