"""How a run in several processes divides the tests: `pytest --numprocesses 4 --dist loadfile`.

A process takes a unit of tests at a time, and the units in their order.

- A unit is a file. In `tests/conformance` and `tests/rocketmq/official` it is a client: its tests,
  of all files, share a broker and a program in its language. `tests/spark` is two, each with a
  Java process for its tests: files of which most of the time goes into programs with a Java of
  their own, and the others.
- The units of each folder are spread over the run, so that tests that wait (for elections, leases,
  other processes) run beside tests that compute. Unit tests are the last ones: they are short, and
  the processes end at about the same time.
"""

from __future__ import annotations

import re
from collections import defaultdict

from xdist.scheduler import LoadFileScheduling

_SPARK_PROGRAMS = {"test_archive.py", "test_etl.py", "test_exactly_once.py"}
# When the longest begin, as a part of the run; each keeps more than one core busy.
_BEGIN = {
    "tests/sim/test_seeds.py": -2.0,
    "tests/spark/programs": -1.0,
    "tests/spark/cluster/test_standalone.py": 0.1,
    "tests/spark/session": 0.3,
    "tests/sim/test_flows.py": 0.5,
}
_ROCKETMQ_CLIENT = re.compile(r"\[(python|go|java|node)\]$")
_CLIENT = re.compile(r"\b(?:grpcio|mq)-(?:python|go|java|node)-(?:plain|tls)\b")
# The part of the run in which the units of other folders than `tests/unit` begin.
_SPREAD = 0.9


def unit_of(test_id: str) -> str:
    file, _, test = test_id.partition("::")
    *folder, name = file.split("/")
    client = _CLIENT.search(test)
    if folder == ["tests", "conformance"] and client is not None:
        return f"tests/conformance/{client.group()}"
    client = _ROCKETMQ_CLIENT.search(test)
    if folder == ["tests", "rocketmq", "official"] and client is not None:
        return f"tests/rocketmq/official-{client.group(1)}"
    if folder == ["tests", "spark"]:
        return f"tests/spark/{'programs' if name in _SPARK_PROGRAMS else 'session'}"
    return file


def in_order(test_ids: list[str]) -> list[int]:
    """The places of the tests in the order in which they are to run."""
    units = dict.fromkeys(map(unit_of, test_ids))
    folders = defaultdict[str, list[str]](list)
    for unit in units:
        folders["/".join(unit.split("/")[:2])].append(unit)
    begin = {
        unit: place / len(found) * (1.0 if folder == "tests/unit" else _SPREAD)
        for folder, found in folders.items()
        for place, unit in enumerate(found)
    }
    begin |= _BEGIN
    # By name as well: units that begin at the same time stay whole.
    keys = [(begin[unit], unit) for unit in map(unit_of, test_ids)]
    return sorted(range(len(test_ids)), key=keys.__getitem__)


class UnitScheduling(LoadFileScheduling):  # type: ignore[misc] # pytest-xdist has no types
    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)
