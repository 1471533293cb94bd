"""The interface of a chaos run to its cluster, and the questions that both kinds answer the same
way: the leader, whether every node is well, whether every log is the same.

Nodes have names that are unique in the cluster. What an engine cannot make fail it names in
`unable`, with the reason: such faults are left out, and the report says so.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self, TypeVar

import grpc

from mq.wire.v1.admin_pb2 import BrokerStatusRequest, BrokerStatusResponse
from mq.wire.v1.cluster_pb2 import RouteRequest, RouteResponse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from google.protobuf.message import Message

Answer = TypeVar("Answer")
# For all of them to be well again; machines that are shared stand still for minutes.
WELL_S = 240.0
_ANSWER_S = 2.0
_POLL_S = 0.05
# How much of the newest log a start checks. It refuses a log with damage in there.
VERIFIED_MIB = 2
# Shared by all brokers of a chaos run: what takes long otherwise is short.
OPTIONS = {
    "transactions.first_check_ms": "1s",
    "transactions.check_interval_ms": "1s",
    "transactions.checks_max": "1000",
    "broker.member_expires_ms": "300s",
    # Many files, most of them complete: what rots is complete, and older than what a start checks.
    "store.segment_bytes": "1MiB",
    "store.verify_bytes": f"{VERIFIED_MIB}MiB",
    "store.checkpoint_log_bytes": "512KiB",
    "store.queue_file_units": "1000",
    "store.index_slots": "256",
    "store.index_items": "2000",
    # Everything is read once more in the end.
    "retention.check_ms": "1d",
}


class Access(NamedTuple):
    """What clients trust and show: the file of an authority and an API key; empty: neither."""

    ca: str = ""
    api_key: str = ""

    @property
    def options(self) -> dict[str, Any]:
        """The arguments of all clients."""
        return self._asdict() if self.ca else {}

    def channel(self, address: str) -> grpc.Channel:
        options = [("grpc.use_local_subchannel_pool", 1)]
        if not self.ca:
            return grpc.insecure_channel(address, options)
        credentials = grpc.ssl_channel_credentials(Path(self.ca).read_bytes())
        return grpc.secure_channel(address, credentials, options)

    @property
    def metadata(self) -> list[tuple[str, str]]:
        return [("authorization", f"Bearer {self.api_key}")] if self.api_key else []


class Network(Protocol):
    """Between the nodes."""

    def isolate(self, node: str) -> None:
        """The node is cut off in both directions, from clients too."""
        ...

    def rejoin(self, node: str) -> None: ...

    def cut(self, source: str, target: str) -> None:
        """Frames from the one do not arrive at the other; the other way is open."""
        ...

    def lose(self, node: str, share: float) -> None:
        """That share of all packets between it and other nodes."""
        ...

    def mend(self) -> None:
        """All that was cut, or loses packets."""
        ...


class SmallDisk(Protocol):
    """The small disk of one node."""

    node: str

    def fill(self) -> None:
        """It has no byte left."""
        ...

    def free(self) -> None: ...


class Engine(Protocol):
    name: str
    # The nodes of each broker set.
    sets: Mapping[str, Sequence[str]]
    # What it cannot make fail, and why.
    unable: Mapping[str, str]
    # Of a client that may do everything; known once the engine has been entered.
    access: Access

    @property
    def network(self) -> Network | None:
        """None: it is not in its hands, for a reason that `unable` has."""
        ...

    @property
    def disk(self) -> SmallDisk | None: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def address(self, node: str) -> str:
        """For clients on this machine."""
        ...

    def kill(self, *nodes: str) -> None:
        """SIGKILL, all at once."""
        ...

    def start(self, *nodes: str) -> None:
        """Does not wait until they are up."""
        ...

    def stop(self, node: str) -> None:
        """SIGTERM; returns when it has ended."""
        ...

    def freeze(self, node: str) -> None: ...

    def thaw(self, node: str) -> None: ...

    def step_clock(self, node: str, step_ms: int) -> None:
        """From now on its clock differs by so much from the right one."""
        ...

    def at_disk(self, node: str, verb: str, argument: object = None) -> Any:
        """The answer of rot_disk.py in its data directory, whether it runs or not."""
        ...

    def logs(self, node: str) -> str:
        """Of its last start."""
        ...


def nodes_of(engine: Engine) -> list[str]:
    return [node for nodes in engine.sets.values() for node in nodes]


def option_flags() -> list[str]:
    """`OPTIONS` for the command line of a broker."""
    found = []
    for name, value in OPTIONS.items():
        found += [f"--{name.replace('.', '-').replace('_', '-')}", value]
    return found


def servers_of(engine: Engine) -> str:
    return ",".join(engine.address(node) for node in nodes_of(engine))


# -- questions -------------------------------------------------------------------------------------


def status(engine: Engine, node: str) -> BrokerStatusResponse | None:
    """None: it does not answer."""
    answer = BrokerStatusResponse.FromString
    return ask(engine, node, "AdminService/BrokerStatus", BrokerStatusRequest(), answer)


def ask(
    engine: Engine, node: str, method: str, request: Message, parse: Callable[[bytes], Answer]
) -> Answer | None:
    """One call to one node. None: it does not answer, or with an error."""
    with engine.access.channel(engine.address(node)) as channel:
        call = channel.unary_unary(
            f"/mq.v1.{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=parse,
        )
        with contextlib.suppress(grpc.RpcError):
            answer: Answer = call(request, timeout=_ANSWER_S, metadata=engine.access.metadata)
            return answer
    return None


def statuses(engine: Engine, nodes: Iterable[str]) -> dict[str, BrokerStatusResponse | None]:
    """Asked at the same time: some may be frozen."""
    asked = list(nodes)
    with ThreadPoolExecutor(len(asked)) as pool:
        return dict(zip(asked, pool.map(lambda node: status(engine, node), asked), strict=True))


def leader(engine: Engine, broker_set: str) -> str:
    """Waits for one that leads by its own word; of several the newest."""

    def found() -> str:
        answers = statuses(engine, engine.sets[broker_set]).items()
        leaders = [
            (one.term, node)
            for node, one in answers
            if one is not None and one.role == "leader" and one.is_ready
        ]
        return max(leaders)[1] if leaders else ""

    return str(wait(found, f"set {broker_set} has a leader"))


def wait_well(engine: Engine, broker_sets: Iterable[str]) -> None:
    """Until every node of these sets follows one leader, or leads, and has applied its log."""
    asked = list(broker_sets)

    def is_well(broker_set: str) -> bool:
        answers = statuses(engine, engine.sets[broker_set]).values()
        ready = [one for one in answers if one is not None and one.is_ready]
        return len(ready) == len(answers) and len({one.leader_id for one in ready}) == 1

    wait(lambda: all(map(is_well, asked)), f"all nodes of {', '.join(asked)} are well")


def wait_same(engine: Engine) -> None:
    """Until all nodes of each set have applied the same log. No client writes by now."""

    def is_same(broker_set: str) -> bool:
        answers = list(statuses(engine, engine.sets[broker_set]).values())
        ends = {one.last_index for one in answers if one is not None}
        ends |= {one.applied_index for one in answers if one is not None}
        return None not in answers and len(ends) == 1

    wait(lambda: all(map(is_same, engine.sets)), "all nodes have applied the same log")


def wait_known(engine: Engine, topics: Sequence[str] = ()) -> None:
    """Until every node knows every set, and these topics in each: they hear of them in about a
    second.
    """

    def is_known(node: str) -> bool:
        request = RouteRequest(topics=topics)
        answer = ask(engine, node, "ClusterService/Route", request, RouteResponse.FromString)
        if answer is None:
            return False
        parts = sorted((part.topic, part.broker_set) for part in answer.topics)
        names = {one.name for one in answer.broker_sets if one.leader_id}
        return names == set(engine.sets) and parts == sorted(itertools.product(topics, names))

    wait(lambda: all(map(is_known, nodes_of(engine))), f"all nodes know all sets and {topics}")


def wait(question: Callable[[], object], what: str, deadline_s: float = WELL_S) -> object:
    """The first answer that is true."""
    end_s = time.monotonic() + deadline_s
    while not (answer := question()):
        if time.monotonic() > end_s:
            raise TimeoutError(f"not within {deadline_s:g} s: {what}")
        time.sleep(_POLL_S)
    return answer
