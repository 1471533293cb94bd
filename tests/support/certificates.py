"""Certificates of an authority of the test's own, as PEM files."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import trustme


class Files(NamedTuple):
    cert: str
    key: str
    ca: str

    def flags(self, section: str) -> dict[str, str]:
        """Of `mq server`: --raft-tls-cert and so on."""
        return {f"--{section}-tls-{part}": path for part, path in self._asdict().items()}


class Authority:
    """Issues certificates into files of a directory."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(exist_ok=True)
        self._directory = directory
        self._ca = trustme.CA()
        self._count = 0

    def files(self, *names: str) -> Files:
        """Of a certificate for these host names and addresses, by default 127.0.0.1."""
        self._count += 1
        found = Files(*(str(self._directory / f"{self._count}.{part}") for part in Files._fields))
        issued = self._ca.issue_cert(*(names or ("127.0.0.1",)))
        Path(found.cert).write_bytes(b"".join(each.bytes() for each in issued.cert_chain_pems))
        issued.private_key_pem.write_to_path(found.key)
        self._ca.cert_pem.write_to_path(found.ca)
        return found
