"""The columns of a table that become messages: found by name, checked by type."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from mq.client.arrow.sending import message_columns
from mq.errors import IllegalRequest

NAMES: dict[str, str | None] = {
    "body": "body",
    "keys": None,
    "tag": None,
    "ordering_key": None,
    "properties": None,
    "born_at": None,
}


def test_columns_have_the_names_of_the_parts_or_those_that_are_given() -> None:
    table = pa.table({"text": ["a"], "tag": ["t"], "order": ["o"], "other": [1]})
    found = message_columns(table, NAMES | {"body": "text", "keys": "order"})
    assert found.to_pydict() == {"body": ["a"], "keys": ["o"], "tag": ["t"]}


@pytest.mark.parametrize(
    "data",
    [
        pa.table({"body": ["a", "b"], "more": [1, 2]}),
        pa.RecordBatch.from_pydict({"body": ["a", "b"]}),
        pa.RecordBatchReader.from_batches(
            pa.schema({"body": pa.string()}), [pa.RecordBatch.from_pydict({"body": ["a", "b"]})]
        ),
        pd.DataFrame({"body": ["a", "b"]}),
    ],
    ids=["table", "batch", "reader", "pandas"],
)
def test_all_that_arrow_can_read_is_a_table(data: Any) -> None:
    assert message_columns(data, NAMES).to_pydict() == {"body": ["a", "b"]}


def test_a_column_of_nulls_says_nothing() -> None:
    found = message_columns(pa.table({"body": ["a"], "tag": pa.nulls(1)}), NAMES)
    assert found.column_names == ["body"]


@pytest.mark.parametrize(
    ("table", "names", "text"),
    [
        (pa.table({"a": ["x"]}), {}, "there is no column body among a: say which one is the body"),
        (
            pa.table({"body": ["x"]}),
            {"ordering_key": "k"},
            "there is no column k among body: say which one is the ordering key, with ordering_key",
        ),
        (pa.table([["x"], ["y"]], names=["body", "body"]), {}, "there are 2 columns body"),
        (pa.table({"n": [1]}), {"body": "n"}, "column n is int64: body must be binary or string"),
        (pa.table({"body": pa.nulls(1)}), {}, "column body is null: body must be binary or string"),
        (
            pa.table({"body": ["x", None, None]}),
            {},
            r"2 of 3 rows have no body \(column body is null\)",
        ),
        (
            pa.table({"body": ["x"], "keys": [[1]]}),
            {},
            r"column keys is list<.*int64>: keys must be string or list<string>",
        ),
        (
            pa.table({"body": ["x"], "properties": [{"a": "b"}]}),
            {},
            r"column properties is struct<.*>: properties must be map<string, string>",
        ),
        (
            pa.table({"body": ["x"], "born_at": ["2026-01-01"]}),
            {},
            "column born_at is string: born_at must be timestamp",
        ),
    ],
)
def test_a_column_that_does_not_fit_is_named(
    table: pa.Table, names: dict[str, str], text: str
) -> None:
    with pytest.raises(IllegalRequest, match=text):
        message_columns(table, NAMES | names)


def test_what_is_no_table_is_refused() -> None:
    with pytest.raises(TypeError):
        message_columns(7, NAMES)
