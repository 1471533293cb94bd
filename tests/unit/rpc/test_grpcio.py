"""Connections of clients, as the kernel lists them."""

from __future__ import annotations

from pathlib import Path

from mq.rpc.grpcio import established

HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid\n"
TCP = """\
   0: 0100007F:1F91 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1
   1: 0100007F:1F91 0100007F:D2A4 01 00000000:00000000 00:00000000 00000000     0        0 2 1
   2: 0100007F:D2A4 0100007F:1F91 01 00000000:00000000 00:00000000 00000000     0        0 3 1
   3: 0100007F:1F91 0100007F:D2A5 06 00000000:00000000 00:00000000 00000000     0        0 4 1
"""
TCP6 = """\
  10: 0000000000000000FFFF00000100007F:1F91 0000000000000000FFFF00000100007F:0050 01 0:0 00:0 0
"""


def test_established_connections_to_a_port_are_counted_in_both_tables(tmp_path: Path) -> None:
    tables = []
    for name, rows in (("tcp", TCP), ("tcp6", TCP6)):
        tables.append(tmp_path / name)
        tables[-1].write_text(HEAD + rows, encoding="ascii")
    # Neither listeners, nor the client's side, nor closed connections.
    counts = [established(port, tables) for port in (0x1F91, 0xD2A4, 80)]
    assert counts == [2, 1, 0]


def test_a_system_without_proc_reports_no_connections(tmp_path: Path) -> None:
    assert established(8081, [tmp_path / "tcp"]) == 0
