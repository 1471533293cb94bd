"""The columns of Spark are those of Arrow."""

from __future__ import annotations

import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from mq.client.arrow.columns import message_schema
from mq_spark.schema import spark_schema


@pytest.mark.parametrize("with_properties", [False, True])
def test_record_batches_have_the_schema_that_spark_expects(with_properties: bool) -> None:
    expected = to_arrow_schema(spark_schema(with_properties=with_properties), timezone="UTC")
    found = message_schema(with_properties=with_properties)
    # Names of list elements are no part of the equality of types.
    assert found == expected
    assert str(found) == str(expected)
