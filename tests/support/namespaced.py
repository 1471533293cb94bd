"""Channels whose calls all have the same metadata: a namespace, or the key of a caller."""

from __future__ import annotations

from typing import Any, NamedTuple

import grpc


class _Details(NamedTuple):
    method: str
    timeout: float | None
    metadata: Any
    credentials: Any
    wait_for_ready: bool | None
    compression: Any


class _Adding(grpc.UnaryUnaryClientInterceptor, grpc.StreamStreamClientInterceptor):  # type: ignore[misc] # grpcio has no types
    def __init__(self, fields: dict[str, str]) -> None:
        self._fields = list(fields.items())

    def _with_fields(self, details: Any) -> _Details:
        metadata = [*(details.metadata or ()), *self._fields]
        return _Details(
            details.method,
            details.timeout,
            metadata,
            details.credentials,
            details.wait_for_ready,
            details.compression,
        )

    def intercept_unary_unary(self, proceed: Any, details: Any, request: Any) -> Any:
        return proceed(self._with_fields(details), request)

    def intercept_stream_stream(self, proceed: Any, details: Any, requests: Any) -> Any:
        return proceed(self._with_fields(details), requests)


def with_metadata(channel: grpc.Channel, **fields: str) -> grpc.Channel:
    """`_` in a name stands for `-`."""
    adding = _Adding({name.replace("_", "-"): value for name, value in fields.items()})
    return grpc.intercept_channel(channel, adding)


def in_namespace(channel: grpc.Channel, namespace: str) -> grpc.Channel:
    return with_metadata(channel, mq_namespace=namespace)
