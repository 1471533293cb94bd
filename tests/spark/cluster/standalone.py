"""A standalone cluster of Spark: a master and two workers from PySpark's own jars, as processes
with a directory each.

Workers find a `python3` that has no packages: what executors need has to reach them. Programs
(`submit`) run in processes of their own, as do the executors that the workers start for them.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import venv
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

import pyspark

from mq_spark.java import use_java
from tests.spark import shared_classes
from tests.support.raft_cluster import free_port
from tests.support.waiting import poll

DEADLINE_S = 300.0  # of a busy machine
SPARK_HOME = Path(pyspark.__file__).parent
_ROOT = Path(__file__).parents[3]
_QUIET = Path(__file__).parents[1] / "log4j2.properties"
_JAVA = f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC {shared_classes.options()}"
CONF = {
    "spark.driver.extraJavaOptions": f"{_JAVA} -Xss8m -Dlog4j2.configurationFile={_QUIET}",
    "spark.driver.memory": "512m",
    "spark.executor.extraJavaOptions": _JAVA,
    "spark.executor.memory": "512m",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
}


class Process:
    """In a directory of its own, and a process group with all that it starts. Ends with a `with`
    block, so that executors of a test that failed are free for the next one.
    """

    def __init__(self, command: Sequence[str], home: Path, environment: Mapping[str, str]) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self._log = home / "log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                cwd=home,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")

    def wait(self) -> str:
        """Its output; it has to end well."""
        assert self._process.wait(DEADLINE_S) == 0, self.output[-5_000:]
        return self.output

    def poll(self, question: Callable[[], object], what: str) -> None:
        """Waits for a true answer, as long as the process runs."""

        def answer() -> object:
            assert self._process.poll() is None, self.output[-5_000:]
            return question()

        poll(answer, what, DEADLINE_S)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


class StandaloneCluster:
    def __init__(self, directory: Path, cores_per_worker: int = 2) -> None:
        """An application has one executor a worker, with as many tasks as that has cores."""
        self._directory = directory.resolve()
        # What is killed leaves its files.
        self._java = f"-Djava.io.tmpdir={self._directory / 'tmp'}"
        self._cores_per_worker = cores_per_worker
        self._processes: list[Process] = []
        self.url = ""

    def __enter__(self) -> Self:
        use_java()
        (self._directory / "tmp").mkdir()
        empty = self._directory / "python"
        venv.create(empty, symlinks=True)
        try:
            self._start(empty)
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self, empty_python: Path) -> None:
        environment = _environment(empty_python / "bin") | {
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": f"{_JAVA} {self._java} -Dspark.master.rest.enabled=false",
        }
        spark_class = str(SPARK_HOME / "bin" / "spark-class")
        deploy = "org.apache.spark.deploy"
        common = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        command = [spark_class, f"{deploy}.master.Master", *common]
        master = self._run("master", command, environment)
        url = r"Starting Spark master at (spark://\S+)"
        master.poll(lambda: re.search(url, master.output), "the master is up")
        self.url = str(re.findall(url, master.output)[0])
        resources = ["--cores", str(self._cores_per_worker), "--memory", "2g"]
        for name in ("worker-1", "worker-2"):
            command = [spark_class, f"{deploy}.worker.Worker", *common, *resources]
            command += ["--work-dir", str(self._directory / name), self.url]
            self._run(name, command, environment)
        master.poll(lambda: master.output.count("Registering worker") == 2, "the workers are there")

    def submit(self, name: str, *arguments: str, conf: Mapping[str, str] | None = None) -> Process:
        """`spark-submit` to this cluster, by the Python of the tests; `arguments` begin with the
        options.
        """
        command = ["spark-submit", "--master", self.url]
        for key, value in (CONF | dict(conf or {})).items():
            files = f" {self._java}" if key.endswith("JavaOptions") else ""
            command += ["--conf", f"{key}={value}{files}"]
        return self._run(name, [*command, *arguments], _of_tests())

    def connect_server(
        self, options: Sequence[str], conf: Mapping[str, str]
    ) -> tuple[Process, str]:
        """A server of Spark Connect, and its address for clients."""
        port = free_port()
        bound = {"spark.connect.grpc.binding.port": str(port)}
        bound |= {"spark.connect.grpc.binding.address": "127.0.0.1"}
        place = ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
        server = self.submit("connect", *options, *place, "spark-internal", conf={**conf, **bound})
        server.poll(lambda: _is_open(port), "the server of Spark Connect is up")
        return server, f"sc://127.0.0.1:{port}"

    def client(self, name: str, *arguments: str) -> Process:
        """A program by the Python of the tests."""
        return self._run(name, [sys.executable, *arguments], _of_tests())

    def _run(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> Process:
        started = Process(command, self._directory / name, environment)
        self._processes.append(started)
        return started

    def executors(self) -> dict[int, Path]:
        """The processes of executors that run, and their directories."""
        found = {}
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                directory = (process / "cwd").readlink()
                is_executor = b"CoarseGrainedExecutorBackend" in (process / "cmdline").read_bytes()
                if is_executor and directory.is_relative_to(self._directory):
                    found[int(process.name)] = directory
        return found

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._processes):
            process.kill()
        for pid in self.executors():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        # Gigabytes. Logs stay.
        for files in self._directory.glob("worker-*/app-*/*/mq-packages"):
            shutil.rmtree(files, ignore_errors=True)
        shutil.rmtree(self._directory / "tmp", ignore_errors=True)


def _is_open(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except ConnectionRefusedError:
        return False
    return True


def _of_tests() -> dict[str, str]:
    """For programs by the Python of the tests, which import others of ours."""
    return {**_environment(Path(sys.executable).parent), "PYTHONPATH": str(_ROOT)}


def _environment(first: Path) -> dict[str, str]:
    """That of the tests, without settings of Spark and Python; programs are found there first."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYSPARK_", "PYTHON", "SPARK_", "VIRTUAL_ENV"))
    }
    path = os.pathsep.join([str(first), os.environ["PATH"]])
    return {**kept, "PATH": path, "SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_IP": "127.0.0.1"}
