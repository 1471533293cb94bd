"""The image of a broker as a container of testcontainers, for tests against what is deployed.

    with MqContainer("mq:local") as broker:
        producer = Producer(broker.address)

Needs testcontainers, of the extra `testing`, and an image: `docker compose build` in deploy/ makes
`mq:local`. Clients connect to the address that a broker advertises, so the port of the host is
chosen before the broker starts.
"""

from __future__ import annotations

import socket
from typing import Any

from mq.extras import explained

try:
    from testcontainers.core.container import DockerContainer
    from testcontainers.core.wait_strategies import LogMessageWaitStrategy
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(explained("MqContainer", error), name=error.name) from None

_PORT = 8081
_START_S = 60


class MqContainer(DockerContainer):  # type: ignore[misc, unused-ignore] # untyped where missing
    """One broker without callers' identities; it has started when clients can be served. `env` has
    the options of `mq server` as variables, such as `{"MQ_STORE_FLUSH": "async"}`.
    """

    def __init__(
        self, image: str = "mq:local", env: dict[str, str] | None = None, **settings: Any
    ) -> None:
        super().__init__(image, **settings)
        self._port = _free_port()
        # Docker may be on another machine, or outside of the container in which tests run.
        host = self.get_docker_client().host()
        self._host = "127.0.0.1" if host == "localhost" else host
        self.with_bind_ports(_PORT, self._port)
        self.with_env("MQ_AUTH_OPEN", "yes")
        self.with_env("MQ_BROKER_ADVERTISED", self.address)
        for name, value in (env or {}).items():
            self.with_env(name, value)
        wait = LogMessageWaitStrategy("node is up").with_startup_timeout(_START_S)
        self.waiting_for(wait)

    @property
    def address(self) -> str:
        """For clients on this machine."""
        return f"{self._host}:{self._port}"


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
