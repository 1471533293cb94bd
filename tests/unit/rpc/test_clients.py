"""Languages of clients, by their user agents."""

from __future__ import annotations

import pytest

from mq.rpc.clients import language_of


@pytest.mark.parametrize(
    ("user_agent", "language"),
    [
        ("grpc-python-asyncio/1.85.1 grpc-c/54.0.0 (linux; chttp2)", ("python", "1.85.1")),
        ("grpc-python/1.60.0 grpc-c/37.0.0 (linux; chttp2)", ("python", "1.60.0")),
        ("grpc-go/1.65.0", ("go", "1.65.0")),
        ("my-app/3 grpc-java-netty/1.66.0", ("java", "1.66.0")),
        ("grpc-node-js/1.11.1", ("node", "1.11.1")),
        ("grpc-c++/1.51.1 grpc-c/29.0.0 (linux; chttp2)", ("c++", "1.51.1")),
        ("curl/8.0", ("", "")),
        ("", ("", "")),
        ("grpc-" * 1_000, ("", "")),
    ],
)
def test_a_user_agent_tells_language_and_version(
    user_agent: str, language: tuple[str, str]
) -> None:
    assert language_of(user_agent) == language
