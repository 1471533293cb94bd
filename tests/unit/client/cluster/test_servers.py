"""Which broker is asked: the fastest of those that work."""

from __future__ import annotations

from mq.client.cluster.connection import Servers


def test_the_first_ones_named_are_asked_first() -> None:
    assert Servers(["a", "b", "c"]).ranking(0.0) == ["a", "b", "c"]


def test_untried_servers_are_asked_first_and_then_the_fastest() -> None:
    servers = Servers(["a", "b", "c"])
    servers.succeeded("a", 0.5)
    servers.succeeded("b", 0.1)
    assert servers.ranking(0.0) == ["c", "b", "a"]
    servers.succeeded("c", 0.3)
    assert servers.best(0.0) == "b"


def test_many_slow_answers_change_the_order_and_one_does_not() -> None:
    servers = Servers(["a", "b"])
    servers.succeeded("a", 0.010)
    servers.succeeded("b", 0.030)
    servers.succeeded("a", 0.100)
    assert servers.best(0.0) == "a"
    for _ in range(10):
        servers.succeeded("a", 0.100)
    assert servers.best(0.0) == "b"


def test_a_failed_broker_comes_last_during_a_growing_penalty() -> None:
    servers = Servers(["a", "b"])
    servers.succeeded("a", 0.001)
    servers.succeeded("b", 1.0)
    servers.failed("a", now_s=100.0)
    assert servers.best(100.1) == "b"
    assert servers.best(100.3) == "a"
    for _ in range(3):
        servers.failed("a", now_s=200.0)
    assert servers.best(200.9) == "b"
    for _ in range(50):
        servers.failed("a", now_s=300.0)
    assert servers.best(311.0) == "a"


def test_a_success_ends_the_while() -> None:
    servers = Servers(["a", "b"])
    servers.succeeded("b", 1.0)
    servers.failed("a", now_s=100.0)
    servers.succeeded("a", 0.001)
    assert servers.best(100.0) == "a"
    servers.failed("a", now_s=101.0)
    assert servers.best(101.3) == "a"


def test_when_all_failed_the_one_whose_while_ends_first_is_asked() -> None:
    servers = Servers(["a", "b"])
    servers.failed("a", now_s=100.1)
    servers.failed("b", now_s=100.0)
    assert servers.best(100.1) == "b"


def test_tried_servers_are_tried_again_when_there_is_no_other() -> None:
    servers = Servers(["a", "b"])
    assert servers.best(0.0, without=["a"]) == "b"
    assert servers.best(0.0, without=["a", "b"]) == "a"


def test_neighbours_come_first_until_they_turn_out_to_be_slower() -> None:
    servers = Servers(["a"], zone="here")
    servers.learn("a", "there")
    servers.learn("b", "here")
    servers.learn("", "here")
    assert servers.ranking(0.0) == ["b", "a"]
    servers.succeeded("b", 0.2)
    servers.succeeded("a", 0.1)
    assert servers.best(0.0) == "a"
