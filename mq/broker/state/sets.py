"""Other broker sets of the cluster that an operator added or removed: part of the replicated state.

Sets that are known by configuration, or because they said hello, are not here; see `directory`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mq.wire.v1.cluster_pb2 import PeerSet


class KnownSets:
    def __init__(self) -> None:
        self._addresses: dict[str, tuple[str, ...]] = {}

    def __len__(self) -> int:
        """With those that were removed."""
        return len(self._addresses)

    def __contains__(self, name: object) -> bool:
        return name in self._addresses

    def added(self) -> dict[str, tuple[str, ...]]:
        """Broker addresses of each set, for other brokers."""
        return {name: found for name, found in sorted(self._addresses.items()) if found}

    def is_removed(self, name: str) -> bool:
        return self._addresses.get(name) == ()

    # -- applying ---------------------------------------------------------------------------------

    def put(self, broker_set: PeerSet) -> None:
        self._addresses[broker_set.name] = tuple(broker_set.addresses)

    def drop(self, name: str) -> None:
        self._addresses[name] = ()

    def encode(self) -> Iterator[PeerSet]:
        for name, addresses in sorted(self._addresses.items()):
            yield PeerSet(name=name, addresses=addresses)

    def restore(self, states: Iterable[PeerSet]) -> None:
        self._addresses = {one.name: tuple(one.addresses) for one in states}
