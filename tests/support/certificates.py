"""Certificates of an authority of the test's own, as PEM files."""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import grpc
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID as Usage

DAY = timedelta(days=1)


class Files(NamedTuple):
    cert: str
    key: str
    ca: str

    def flags(self, section: str) -> dict[str, str]:
        """Of `mq server`: --raft-tls-cert and so on."""
        return {f"--{section}-tls-{part}": path for part, path in self._asdict().items()}

    def credentials(self, client: Files | None = None) -> grpc.ChannelCredentials:
        """Of a client that trusts this authority, and shows the certificate of `client`."""
        own = (Path(client.key).read_bytes(), Path(client.cert).read_bytes()) if client else ()
        return grpc.ssl_channel_credentials(Path(self.ca).read_bytes(), *own)


class Pair(NamedTuple):
    cert: bytes
    key: bytes


class Authority:
    """Issues certificates into files of a directory."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(exist_ok=True)
        self._directory = directory
        self._ca = trustme.CA()
        self._count = 0

    def files(self, *names: str, is_for_clients: bool = True) -> Files:
        """Of a certificate for these host names, addresses and URIs, by default 127.0.0.1."""
        self._count += 1
        found = Files(*(str(self._directory / f"{self._count}.{part}") for part in Files._fields))
        self._ca.cert_pem.write_to_path(found.ca)
        self.renew(found, *names, is_for_clients=is_for_clients)
        return found

    def renew(self, files: Files, *names: str, is_for_clients: bool = True) -> Pair:
        """Another certificate and key into the same files."""
        pair = self.issue(*names, is_for_clients=is_for_clients)
        Path(files.cert).write_bytes(pair.cert)
        Path(files.key).write_bytes(pair.key)
        return pair

    def issue(self, *names: str, is_for_clients: bool = True, days: float = 30) -> Pair:
        key = ec.generate_private_key(ec.SECP256R1())
        authority = x509.load_pem_x509_certificate(self._ca.cert_pem.bytes())
        signer = serialization.load_pem_private_key(self._ca.private_key_pem.bytes(), None)
        assert isinstance(signer, ec.EllipticCurvePrivateKey)
        usages = [Usage.SERVER_AUTH, *([Usage.CLIENT_AUTH] if is_for_clients else [])]
        now = datetime.now(UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([]))
            .issuer_name(authority.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 2 * DAY)
            .not_valid_after(now + days * DAY)
            .add_extension(
                x509.SubjectAlternativeName([_name(one) for one in names or ("127.0.0.1",)]),
                critical=True,
            )
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .sign(signer, hashes.SHA256())
        )
        return Pair(
            certificate.public_bytes(serialization.Encoding.PEM),
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            ),
        )


def _name(text: str) -> x509.GeneralName:
    if "://" in text:
        return x509.UniformResourceIdentifier(text)
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)
