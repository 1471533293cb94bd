"""The division of tests over processes: `tests/support/work_units.py`."""

from __future__ import annotations

from itertools import groupby

from tests.support.work_units import in_order, unit_of

TESTS = [
    *(f"tests/cluster/test_{file}.py::test_{n}" for file in "ab" for n in range(3)),
    "tests/conformance/test_pull.py::test_it",
    *(
        f"tests/conformance/test_{file}.py::test_it[{client}]"
        for file in ("pull", "send")
        for client in ("mq-python-plain", "mq-go-tls-more", "more-mq-go-tls")
    ),
    "tests/sim/test_seeds.py::test_all",
    *(f"tests/spark/test_{file}.py::test_it[mq-go-tls]" for file in ("etl", "reader", "writer")),
    *(f"tests/unit/store/test_{file}.py::test_it" for file in "abcdefgh"),
]


def test_every_test_runs_once_and_units_stay_whole() -> None:
    order = in_order(TESTS)
    assert sorted(order) == list(range(len(TESTS)))
    units = [unit for unit, _ in groupby(unit_of(TESTS[place]) for place in order)]
    assert sorted(units) == sorted(set(units)) == sorted(set(map(unit_of, TESTS)))
    assert units[:2] == ["tests/sim/test_seeds.py", "tests/spark/programs"]
    assert units[-1].startswith("tests/unit")


def test_tests_of_one_client_are_a_unit_over_all_files() -> None:
    assert unit_of("tests/conformance/test_send.py::test_it[mq-go-tls-0]") == unit_of(
        "tests/conformance/test_pull.py::test_it[0-mq-go-tls]"
    )


def test_tests_of_a_unit_keep_their_order() -> None:
    order = in_order(TESTS)
    for unit in set(map(unit_of, TESTS)):
        places = [place for place in order if unit_of(TESTS[place]) == unit]
        assert places == sorted(places)
