"""Certificates of a development authority, in files of one directory.

    ca.pem, ca.key                 the authority, which stays
    server.pem, server.key         of brokers: to clients, to each other, and between nodes
    client-NAME.pem, .key          of a client

A certificate and its key are each replaced by a rename, so that no file is ever half there; brokers
that watch them wait for the pair. Keys are readable by their owner alone from the start.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from mq.errors import IllegalConfig

_AUTHORITY_DAYS = 3_650
# Clocks differ a little.
_BACKDATED = timedelta(hours=1)
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9])?|[a-z]+://[!-~]{1,250}")
_SERVER = "server"
_CLIENT = "client-"


class Issued(NamedTuple):
    """A certificate in a file."""

    cert: str
    key: str
    names: Sequence[str]
    not_after: datetime


class Authority:
    """`open` it: an authority that is there stays, unless it is to be replaced."""

    def __init__(
        self, directory: Path, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey
    ) -> None:
        self._directory = directory
        self._certificate = certificate
        self._key = key

    @classmethod
    def open(cls, directory: Path, *, replaces: bool) -> tuple[Authority, bool]:
        """And whether it is new. IllegalConfig: what is there cannot be used."""
        cert, key = directory / "ca.pem", directory / "ca.key"
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not replaces and (cert.exists() or key.exists()):
            return cls(directory, *_read_authority(cert, key)), False
        found = cls(directory, *_new_authority())
        found._write("ca", found._certificate, found._key)
        return found, True

    @property
    def cert(self) -> str:
        return str(self._directory / "ca.pem")

    @property
    def not_after(self) -> datetime:
        return self._certificate.not_valid_after_utc

    def server(self, names: Sequence[str], days: int) -> Issued:
        """For these names and those of the certificate that it replaces."""
        before = self._names_of(self._directory / f"{_SERVER}.pem")
        return self._issue(_SERVER, [*dict.fromkeys([*names, *before])], days, is_server=True)

    def client(self, name: str, days: int) -> Issued:
        file = _CLIENT + re.sub(r"[^A-Za-z0-9_.-]+", "-", name)
        return self._issue(file, [name], days, is_server=False)

    def clients(self) -> list[str]:
        """Those that have a certificate here."""
        files = sorted(self._directory.glob(f"{_CLIENT}*.pem"))
        return [name for file in files for name in self._names_of(file)[:1]]

    @property
    def has_server(self) -> bool:
        return (self._directory / f"{_SERVER}.pem").exists()

    @staticmethod
    def _names_of(path: Path) -> list[str]:
        """None if it cannot be read: it is replaced."""
        try:
            found = x509.load_pem_x509_certificate(path.read_bytes())
            names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except (OSError, ValueError, x509.ExtensionNotFound):
            return []
        return [str(one.value) for one in names]

    def _issue(self, file: str, names: list[str], days: int, *, is_server: bool) -> Issued:
        key = ec.generate_private_key(ec.SECP256R1())
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
        if is_server:
            # Brokers connect to each other, too.
            usages.append(ExtendedKeyUsageOID.SERVER_AUTH)
        not_after = min(_now() + timedelta(days=days), self.not_after)
        certificate = (
            _builder(key, x509.Name([]), not_after)
            .issuer_name(self._certificate.subject)
            .add_extension(
                x509.SubjectAlternativeName([general_name(one) for one in names]), critical=True
            )
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
            .sign(self._key, hashes.SHA256())
        )
        paths = self._write(file, certificate, key)
        return Issued(*paths, names, certificate.not_valid_after_utc)

    def _write(
        self, file: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey
    ) -> tuple[str, str]:
        cert_path, key_path = self._directory / f"{file}.pem", self._directory / f"{file}.key"
        private = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        _replace(key_path, private, mode=0o600)
        _replace(cert_path, certificate.public_bytes(serialization.Encoding.PEM), mode=0o644)
        return str(cert_path), str(key_path)


def general_name(text: str) -> x509.GeneralName:
    """IllegalConfig: it cannot be the name of a host or a client."""
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        pass
    if _NAME.fullmatch(text) is None:
        raise IllegalConfig(
            f"{text[:200]!r} cannot stand in a certificate: use a host name, an IP address, a name "
            "of letters, digits and _.-, or a URI"
        )
    return x509.UniformResourceIdentifier(text) if "://" in text else x509.DNSName(text)


def _read_authority(cert: Path, key: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    try:
        certificate = x509.load_pem_x509_certificate(cert.read_bytes())
        private = serialization.load_pem_private_key(key.read_bytes(), None)
    except (OSError, ValueError, TypeError) as error:
        raise IllegalConfig(
            f"the authority in {cert} and {key} cannot be used: {error}; --force makes another "
            "one, which no client trusts that trusts this one"
        ) from error
    if (
        not isinstance(private, ec.EllipticCurvePrivateKey)
        or private.public_key() != certificate.public_key()
    ):
        raise IllegalConfig(f"{key} is not the key of {cert}: --force makes another authority")
    if certificate.not_valid_after_utc <= _now():
        raise IllegalConfig(f"the authority in {cert} has expired: --force makes another one")
    return certificate, private


def _new_authority() -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "mq development authority")])
    signs = x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    certificate = (
        _builder(key, name, _now() + timedelta(days=_AUTHORITY_DAYS))
        .issuer_name(name)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(signs, critical=True)
        .sign(key, hashes.SHA256())
    )
    return certificate, key


def _builder(
    key: ec.EllipticCurvePrivateKey, subject: x509.Name, not_after: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_now() - _BACKDATED)
        .not_valid_after(not_after)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _replace(path: Path, content: bytes, *, mode: int) -> None:
    temporary = path.with_name(f"{path.name}.new")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with open(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(descriptor)
    temporary.replace(path)


def _now() -> datetime:
    return datetime.now(UTC)
