"""Reports of batches to the command that started their query, as small files.

A function of foreachBatch runs in the process of the command, or, through Spark Connect, in a
process of the server, on a copy of its objects: the command never sees what the copy counts. So
the function writes a report of each batch, and the command reads it, in a directory that both have.
Reports are only shown: they are not synced, and a new run deletes those of the last one.
"""

from __future__ import annotations

from pathlib import Path

LEFT_MAX = 1_000


class Reports:
    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def clear(self) -> None:
        """Deletes what an earlier run has left."""
        self._directory.mkdir(parents=True, exist_ok=True)
        for left in self._directory.glob("[0-9]*"):
            left.unlink()

    def write(self, batch_id: int, report: bytes) -> None:
        """In place of one of the same batch that was not taken yet. Of a query whose command is
        gone only so many are kept.
        """
        if sum(1 for _ in self._directory.iterdir()) >= LEFT_MAX:
            return
        fresh = self._directory / f".{batch_id}"
        fresh.write_bytes(report)
        fresh.replace(self._directory / f"{batch_id:020d}")

    def take(self) -> list[bytes]:
        """Those that have come since, in the order of their batches."""
        found = []
        for path in sorted(self._directory.glob("[0-9]*")):
            found.append(path.read_bytes())
            path.unlink()
        return found
