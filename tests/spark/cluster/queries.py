"""Queries of the programs that tests submit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.errors import StreamingQueryException

_LOOK_S = 1


def run_to_end(writers: Mapping[str, Any]) -> None:
    """All that is there now, side by side, by a `DataStreamWriter` for each checkpoint, of either
    kind of session.

    Spark gives a new Python process ten seconds to say that it is there, which a busy machine does
    not always keep; then the query is started again, from its checkpoint, as an operator would.
    """
    running = {checkpoint: _start(writer, checkpoint) for checkpoint, writer in writers.items()}
    while running:
        for checkpoint, query in list(running.items()):
            try:
                if query.awaitTermination(_LOOK_S):
                    del running[checkpoint]
            except StreamingQueryException as error:
                if "failed to connect back" not in str(error):
                    raise
                running[checkpoint] = _start(writers[checkpoint], checkpoint)


def _start(writer: Any, checkpoint: str) -> Any:
    return writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
