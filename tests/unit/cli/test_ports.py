"""Ports of this machine: which are free."""

from __future__ import annotations

import socket

from mq.cli.ports import free_ports, is_free

HOST = "127.0.0.1"


def test_a_port_is_free_until_something_listens_there() -> None:
    [port] = free_ports(HOST, 1)
    assert is_free(HOST, port)
    with socket.socket() as other:
        other.bind((HOST, port))
        other.listen()
        assert not is_free(HOST, port)


def test_free_ports_are_different_ones() -> None:
    assert len(set(free_ports(HOST, 20))) == 20


def test_a_host_that_is_not_here_has_no_free_port() -> None:
    assert not is_free("192.0.2.1", 0)
