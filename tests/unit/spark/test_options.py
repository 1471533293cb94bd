"""Options of the source: meanings, defaults, and mistakes that are named."""

from __future__ import annotations

import pytest

from mq.client import QueueRef
from mq.client.lowlevel import ConnectionOptions
from mq_spark.errors import MqSparkError
from mq_spark.options import (
    AtOffsets,
    AtTime,
    ReadOptions,
    Topics,
    check_batch,
    check_stream,
    connection_of,
    connection_options,
    read_options,
)

LEAST = {"servers": "a:1", "subscribe": "t"}


def test_omitted_options_have_their_defaults() -> None:
    assert read_options(LEAST) == ReadOptions(ConnectionOptions(("a:1",)), Topics(names=("t",)))
    assert read_options(LEAST).fail_on_data_loss
    assert read_options(LEAST).exact_tags is None


def test_names_are_the_same_in_upper_and_lower_case() -> None:
    given = {
        "SERVERS": "a:1, b:2",
        "Subscribe": "t, u,t",
        "startingtimestamp": "1970-01-01T00:00:01Z",
        "ENDINGOFFSETS": '{"t": {"set-0/1": 5, "0": -1}}',
        "maxoffsetspertrigger": "10",
        "minPARTITIONS": "3",
        "failondataloss": "FALSE",
        "includeproperties": "True",
        "tags": "a || b",
        "group": "g",
        "zone": "z",
        "checkpointlocation": "/x",
        "queryname": "q",
    }
    assert read_options(given) == ReadOptions(
        connection=ConnectionOptions(("a:1", "b:2"), zone="z"),
        topics=Topics(names=("t", "u")),
        starting=AtTime(1000),
        ending=AtOffsets("endingOffsets", {QueueRef("t", 1, "set-0"): 5, QueueRef("t", 0): -1}),
        offsets_per_trigger_max=10,
        partitions_min=3,
        fail_on_data_loss=False,
        with_properties=True,
        tags="a || b",
        group="g",
    )
    assert read_options(given).exact_tags == frozenset(["a", "b"])


def test_topics_are_chosen_in_one_of_three_ways() -> None:
    base = {"servers": "a:1"}
    pattern = read_options(base | {"subscribePattern": "o.*"}).topics
    assert pattern.matches("orders")
    assert not pattern.matches("no-orders")
    assigned = read_options(base | {"assign": '{"t": ["b/1", 0], "a": ["2"]}'}).topics
    assert assigned.queues == (QueueRef("a", 2), QueueRef("t", 0), QueueRef("t", 1, "b"))


@pytest.mark.parametrize(
    ("given", "at_ms"),
    [
        ("1500", 1500),
        ("1970-01-01T00:00:01", 1000),
        ("1970-01-01T01:00:01+01:00", 1000),
        ("1970-01-02", 86_400_000),
    ],
)
def test_a_time_is_in_milliseconds_or_as_people_write_it(given: str, at_ms: int) -> None:
    assert read_options(LEAST | {"startingTimestamp": given}).starting == AtTime(at_ms)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"server": "a:1"}, "did you mean servers?"),
        ({"startingOffset": "latest"}, "did you mean startingOffsets?"),
        ({"xyzzy": "1"}, "there are: servers, subscribe"),
        ({"servers": ""}, "option servers is missing"),
        ({"servers": "a"}, "give one or more of host:port"),
        ({"subscribe": ""}, "exactly one of subscribe, subscribePattern, assign: none is given"),
        ({"assign": '{"t": [0]}'}, "subscribe and assign is given"),
        ({"subscribe": ","}, "name one or more topics"),
        ({"subscribe": "a b"}, "subscribe: topic 'a b' is not legal"),
        ({"subscribe": "", "subscribePattern": "("}, "is no regular expression"),
        ({"subscribe": "", "assign": "t"}, "assign = 't': use JSON such as"),
        ({"subscribe": "", "assign": '{"t": 1}'}, "t needs a list of queues"),
        ({"subscribe": "", "assign": '{"t": ["x"]}'}, "'x' is no queue of t"),
        ({"startingOffsets": "soon"}, "use earliest, latest or JSON"),
        ({"startingOffsets": "{}"}, "use earliest, latest or JSON"),
        ({"startingOffsets": '{"t": 3}'}, "t needs offsets of its queues"),
        ({"startingOffsets": '{"t": {"0": -3}}'}, "t 0 is -3: use a queue offset"),
        ({"startingOffsets": '{"t": {"0": true}}'}, "t 0 is True"),
        ({"startingOffsets": '{"t": {"/0": 1}}'}, "'/0' is no queue"),
        ({"endingOffsets": '{"t": {"0": -2}}'}, "leaves nothing to read"),
        ({"startingOffsets": "latest", "startingTimestamp": "1"}, "are both given"),
        ({"endingOffsets": "latest", "endingTimestamp": "1"}, "are both given"),
        ({"startingTimestamp": "yesterday"}, "use milliseconds since 1970"),
        ({"startingTimestamp": "1960-01-01"}, "before 1970"),
        ({"minPartitions": "0"}, "minPartitions = '0': use a whole number above 0"),
        ({"maxOffsetsPerTrigger": "many"}, "maxOffsetsPerTrigger = 'many'"),
        ({"failOnDataLoss": "yes"}, "failOnDataLoss = 'yes': use true or false"),
        ({"group": "%g"}, "group: group '%g' is not legal"),
        ({"tags": "a || "}, "tags = 'a ||': use tags such as"),
    ],
)
def test_a_mistake_is_named(given: dict[str, str], told: str) -> None:
    with pytest.raises(MqSparkError) as caught:
        read_options(LEAST | given)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"startingOffsets": "latest"}, "startingOffsets: 'latest' (-1) leaves nothing"),
        ({"startingOffsets": '{"t": {"0": -1}}'}, "startingOffsets: 'latest' (-1)"),
        ({"endingOffsets": "earliest"}, "endingOffsets: 'earliest' leaves nothing"),
    ],
)
def test_offsets_that_leave_nothing_are_refused_in_a_batch(
    given: dict[str, str], told: str
) -> None:
    options = read_options(LEAST | given)
    with pytest.raises(MqSparkError) as caught:
        check_batch(options)
    assert told in str(caught.value)


@pytest.mark.parametrize("given", [{"maxOffsetsPerTrigger": "1"}, {"group": "g"}])
def test_a_batch_may_have_the_options_of_a_stream(
    given: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    check_batch(read_options(LEAST | given))
    assert f"{next(iter(given))} does nothing here" in caplog.text


@pytest.mark.parametrize("given", [{"endingOffsets": "latest"}, {"endingTimestamp": "5"}])
def test_a_stream_has_no_end(given: dict[str, str]) -> None:
    options = read_options(LEAST | given)
    check_batch(options)
    with pytest.raises(MqSparkError, match=f"{next(iter(given))} cannot be used here"):
        check_stream(options)


# The connection

SECRET = "mqk_abcdefghijkl_" + "s" * 43


def test_a_connection_has_the_arguments_of_clients_and_can_be_told_as_options_again() -> None:
    given = {
        "servers": "a:1,b:2",
        "zone": "z",
        "TLS": "true",
        "ca": "/ca",
        "cert": "/c",
        "key": "/k",
        "apikeyfile": "/f",
        "namespace": "n",
    }
    connection = connection_of(given)
    assert connection == ConnectionOptions(
        ("a:1", "b:2"),
        zone="z",
        tls=True,
        ca="/ca",
        cert="/c",
        key="/k",
        api_key_file="/f",
        namespace="n",
    )
    assert connection_of(connection_options(connection)) == connection
    least = connection_of({"servers": "a:1", "apiKey": SECRET})
    assert connection_options(least) == {"servers": "a:1", "apiKey": SECRET}


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"cert": "/c"}, "option cert is given without key: give both cert and key"),
        ({"apiKey": "x", "apiKeyFile": "/f"}, "option apiKey and apiKeyFile are two keys"),
        ({"apiKey": f"{SECRET} x"}, "option apiKey holds no API key"),
        ({"tls": "perhaps"}, "tls = 'perhaps': use true or false"),
    ],
)
def test_a_slip_in_the_connection_is_told_without_the_key(given: dict[str, str], told: str) -> None:
    with pytest.raises(MqSparkError, match=told) as raised:
        read_options(LEAST | given)
    assert "sss" not in str(raised.value)


def test_a_secret_is_in_no_repr_of_options() -> None:
    assert "sss" not in repr(read_options(LEAST | {"apiKey": SECRET}))
