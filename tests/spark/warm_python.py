"""The Python that Spark starts for its workers, with everything imported.

A session starts a process for each kind of its workers, which forks one for each task; all of them
import pandas, pyarrow and parts of PySpark: most of what they do in a test. `use` gives Spark a
`python` that has a warm process fork instead, as `tests.support.warm_process` does for brokers:

    Spark --starts--> warm-python --socket--> the warm process --fork--> a keeper --fork--> worker
                          ^------------------- pipe: its pid, then its status -----'

Executors of the standalone cluster have a Python of their own, which has to find packages.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import os
import runpy
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.waiting import DEADLINE_S, poll
from tests.support.warm_process import serve

_ROOT = Path(__file__).parents[2]
_PRELOADED = (
    "pandas",
    "pyarrow",
    "pyarrow.compute",
    "pyspark.daemon",
    "pyspark.sql.pandas.serializers",
    "pyspark.sql.streaming.python_streaming_source_runner",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.data_source_pushdown_filters",
    "pyspark.sql.worker.lookup_data_sources",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.sql.worker.python_streaming_sink_runner",
    "pyspark.sql.worker.write_into_data_source",
    "pyspark.worker",
)


@functools.cache
def use() -> None:
    """From now on, for each Spark that this process or a child of it starts."""
    directory = tempfile.TemporaryDirectory(prefix="warm-python-")
    place = Path(directory.name) / "requests"
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.spark.warm_python", str(place)], cwd=_ROOT
    )
    poll(place.exists, "the warm Python is there")

    def end() -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as requests:
            requests.sendto(b"", str(place))
        process.wait(DEADLINE_S)
        directory.cleanup()

    atexit.register(end)
    os.environ["WARM_PYTHON"], os.environ["WARM_PYTHON_REQUESTS"] = sys.executable, str(place)
    os.environ["PYSPARK_PYTHON"] = str(Path(__file__).with_name("warm-python"))


def main() -> None:
    for module in _PRELOADED:
        importlib.import_module(module)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as requests:
        requests.bind(sys.argv[1])
        request = serve(requests)
    if request is not None:
        sys.argv[1:] = request["arguments"]
        # Its program has something to do as `__main__` alone.
        runpy.run_module(request["module"], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
