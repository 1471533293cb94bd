"""Generations of certificates: files that belong together replace others that do, and no else."""

from __future__ import annotations

import os
import ssl
from pathlib import Path

import pytest

from mq import tls
from mq.errors import IllegalConfig
from mq.tls import Certificates, Leaf, Pem
from tests.support.certificates import Authority, Files


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def files(authority: Authority) -> Files:
    return authority.files()


class Built:
    """Keeps what was built, as a listener would."""

    def __init__(self, files: Files) -> None:
        self.count = 0
        self.certificates = Certificates("test", tls.Files(*files), self._build)

    def _build(self, files: tls.Files, pem: Pem, leaf: Leaf) -> Pem:
        assert leaf.not_after_s
        tls.server_context(files, "required")
        self.count += 1
        return pem

    @property
    def cert(self) -> bytes:
        return self.certificates.current.cert


def test_files_that_stay_the_same_are_read_once(files: Files) -> None:
    built = Built(files)
    assert not built.certificates.refresh()
    os.utime(files.cert)
    assert not built.certificates.refresh()
    assert not built.certificates.refresh(is_asked=True)
    assert (built.count, built.certificates.generation.number) == (1, 1)


def test_files_that_belong_together_are_the_next_generation(
    authority: Authority, files: Files
) -> None:
    built = Built(files)
    before = built.certificates.generation.leaf.not_after_s
    pair = authority.issue(days=90)
    Path(files.cert).write_bytes(pair.cert)
    Path(files.key).write_bytes(pair.key)
    assert built.certificates.refresh()
    assert built.cert == pair.cert
    assert built.certificates.generation.number == 2
    assert built.certificates.generation.leaf.not_after_s > before
    assert not built.certificates.refresh()


def test_files_that_are_half_written_change_nothing_and_are_told_once(
    authority: Authority, files: Files
) -> None:
    built = Built(files)
    first = built.cert
    pair = authority.issue()
    steps = [
        (files.cert, pair.cert[:300], "holds no"),
        (files.cert, b"", "holds no"),
        (files.cert, pair.cert, "does not belong to the certificate"),
        (files.key, pair.key[:100], "holds no private key"),
    ]
    for path, content, text in steps:
        Path(path).write_bytes(content)
        with pytest.raises(IllegalConfig, match=text):
            built.certificates.refresh()
        assert not built.certificates.refresh()
        with pytest.raises(IllegalConfig, match=text):
            built.certificates.refresh(is_asked=True)
        assert built.cert == first
    Path(files.key).write_bytes(pair.key)
    assert built.certificates.refresh()
    assert built.cert == pair.cert


def test_an_authority_that_cannot_be_used_keeps_the_certificate_back(
    authority: Authority, files: Files
) -> None:
    built = Built(files)
    first, ca = built.cert, Path(files.ca).read_bytes()
    authority.renew(files)
    Path(files.ca).write_bytes(ca[:200])
    with pytest.raises(IllegalConfig, match="certificate authority"):
        built.certificates.refresh()
    assert built.cert == first
    Path(files.ca).write_bytes(ca)
    assert built.certificates.refresh()


def test_files_that_change_while_they_are_loaded_are_loaded_again(
    authority: Authority, files: Files
) -> None:
    """OpenSSL reads them by itself: a context must not be of others than were read."""
    last = b""

    def build(paths: tls.Files, pem: Pem, _: Leaf) -> Pem:
        nonlocal last
        tls.server_context(paths)
        if is_writing:
            last = authority.renew(files).cert
        return pem

    is_writing = False
    certificates = Certificates("test", tls.Files(*files), build)
    first = certificates.current
    authority.renew(files)
    is_writing = True
    with pytest.raises(IllegalConfig, match="is being written"):
        certificates.refresh()
    assert certificates.current is first
    is_writing = False
    assert certificates.refresh()
    assert certificates.current.cert == last


def test_a_file_that_is_missing_for_a_while_changes_nothing(files: Files) -> None:
    built = Built(files)
    os.rename(files.key, f"{files.key}.away")
    with pytest.raises(IllegalConfig, match="cannot be read"):
        built.certificates.refresh()
    assert not built.certificates.refresh()
    os.rename(f"{files.key}.away", files.key)
    assert not built.certificates.refresh()
    assert built.count == 1


def test_a_file_in_place_of_another_is_seen_by_its_inode(
    authority: Authority, files: Files, tmp_path: Path
) -> None:
    built = Built(files)
    seen = os.stat(files.cert)
    pair = authority.issue()
    (tmp_path / "new").write_bytes(pair.cert + b"\n" * (seen.st_size - len(pair.cert)))
    os.utime(tmp_path / "new", ns=(seen.st_atime_ns, seen.st_mtime_ns))
    Path(files.key).write_bytes(pair.key)
    os.utime(files.key, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    os.rename(tmp_path / "new", files.cert)
    assert built.certificates.refresh()


def test_a_directory_that_is_exchanged_by_a_link_is_seen(
    authority: Authority, tmp_path: Path
) -> None:
    """As Kubernetes does with a Secret."""
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        for source, part in zip(authority.files(), Files._fields, strict=True):
            os.rename(source, tmp_path / name / part)
    (tmp_path / "now").symlink_to("old")
    built = Built(Files(*(str(tmp_path / "now" / part) for part in Files._fields)))
    (tmp_path / "next").symlink_to("new")
    os.rename(tmp_path / "next", tmp_path / "now")
    assert built.certificates.refresh()
    assert built.cert == (tmp_path / "new" / "cert").read_bytes()


def test_contexts_for_clients_with_certificates_resume_no_session(files: Files) -> None:
    """A session that is resumed does not show its certificate again."""
    paths = tls.Files(*files)
    assert tls.server_context(paths).num_tickets > 0
    for clients in ("optional", "required"):
        context = tls.server_context(paths, clients)
        assert context.num_tickets == 0
        assert context.options & ssl.OP_NO_TICKET


def test_a_certificate_tells_whether_clients_may_show_it(authority: Authority) -> None:
    assert tls.read_leaf("x", authority.issue().cert).is_for_clients
    assert not tls.read_leaf("x", authority.issue(is_for_clients=False).cert).is_for_clients
