"""Administration for programs without asyncio: `admin`, run on the background thread of `sync`."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from mq.client.admin import admin
from mq.client.admin.admin import Answers, OffsetTarget, TypeName
from mq.client.admin.admin_operations import OperationsSync
from mq.client.closing import Closing
from mq.client.cluster.connection import CALL_TIMEOUT_S
from mq.client.messages import FilterLike
from mq.client.sync import background
from mq.wire.v1 import admin_pb2 as pb
from mq.wire.v1.cluster_pb2 import RouteResponse
from mq.wire.v1.transaction_pb2 import EndTransactionResponse

T = TypeVar("T")


class Admin(OperationsSync, Closing):
    """Topics, groups, single messages, the brokers. Any number of threads may use one.

    >>> from mq.client import Admin
    >>> with Admin("127.0.0.1:8081") as admin:
    ...     admin.create_topic("payments", queues=4).write_queues
    ...     [one.info.topic for one in admin.list_topics() if one.info.topic == "payments"]
    ...     admin.alter_topic("payments", write_queues=8, read_queues=8).read_queues
    ...     admin.delete_topic("payments")
    4
    ['payments']
    8

    Answers are the messages of proto/mq/v1/admin.proto, errors those of `mq.errors`. Reads of all
    broker sets answer with what there is: `missing_sets` names those that did not answer.
    """

    def __init__(
        self,
        servers: str | Sequence[str] = "127.0.0.1:8081",
        *,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> None:
        """`timeout_s`: how long a call may take, with all its attempts to find a broker."""
        self._core: admin.Admin = admin.Admin(servers, timeout_s=timeout_s)
        self._background = background()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._background.run(work)

    def create_topic(
        self,
        topic: str,
        queues: int = 0,
        type: TypeName = "normal",  # noqa: A002
        *,
        priorities: int = 0,
        sets: Sequence[str] | None = None,
    ) -> pb.TopicInfo:
        """Its queues are spread evenly over all broker sets, or over these. 0 queues: 8 in all, or
        the default of the broker where there is one set. `priorities`: 2 to 10, and 0 for none;
        each set has queues of all of them.

        TopicExists when a set has it. What failed when some sets had it and others did not is
        completed by the same call. Returns when brokers show all of it to clients.
        """
        return self._run(
            self._core.create_topic(topic, queues, type, priorities=priorities, sets=sets)
        )

    def extend_topic(self, topic: str, broker_set: str, queues: int) -> pb.TopicInfo:
        """The topic has so many queues in this set from now on, of the type that it has elsewhere:
        a first part there, or more queues than before. Answers as it is in this set. Returns when
        brokers show it to clients.
        """
        return self._run(self._core.extend_topic(topic, broker_set, queues))

    def drain_topic(self, topic: str, broker_set: str) -> pb.TopicInfo:
        """It takes no more messages in this set, and is consumed there until it is empty; then
        `remove_part`. IllegalRequest: no other set would take messages.
        """
        return self._run(self._core.drain_topic(topic, broker_set))

    def remove_part(self, topic: str, broker_set: str, *, force: bool = False) -> None:
        """Deletes the queues that the topic has in this set, with their messages. IllegalRequest,
        with numbers, unless it was drained and consumed, or with `force`; and when no other set
        has the topic.
        """
        self._run(self._core.remove_part(topic, broker_set, force=force))

    def alter_topic(
        self,
        topic: str,
        *,
        write_queues: int | None = None,
        read_queues: int | None = None,
        is_readable: bool | None = None,
        is_writable: bool | None = None,
        broker_set: str = "",
    ) -> pb.TopicInfo:
        """What is None stays as it is. In one broker set, or in all that have it: then queues
        cannot be changed when there are several, since each set counts its own. To shrink without
        loss lower `write_queues`, let consumers finish, then lower `read_queues`.
        """
        return self._run(
            self._core.alter_topic(
                topic,
                write_queues=write_queues,
                read_queues=read_queues,
                is_readable=is_readable,
                is_writable=is_writable,
                broker_set=broker_set,
            )
        )

    def delete_topic(self, topic: str) -> None:
        """In all broker sets. Its messages are gone at once."""
        self._run(self._core.delete_topic(topic))

    def list_topics(self, *, include_internal: bool = False) -> Answers[pb.TopicSummary]:
        """Of all broker sets."""
        return self._run(self._core.list_topics(include_internal=include_internal))

    def describe_topic(self, topic: str) -> pb.DescribeTopicResponse:
        """With the queues of all broker sets. TopicNotFound."""
        return self._run(self._core.describe_topic(topic))

    def list_groups(self) -> Answers[pb.GroupSummary]:
        """Of all broker sets; a member of several is one."""
        return self._run(self._core.list_groups())

    def describe_group(self, group: str) -> pb.DescribeGroupResponse:
        """With the queues of all broker sets. GroupNotFound."""
        return self._run(self._core.describe_group(group))

    def reset_offsets(
        self,
        group: str,
        topic: str,
        to: OffsetTarget,
        queue_ids: Iterable[int] = (),
        *,
        dry_run: bool = False,
        broker_set: str = "",
    ) -> pb.ResetOffsetsResponse:
        """To the earliest message, behind the latest, or to the first one stored at a time in ms or
        later; in one broker set, or in all that have the topic. Single queues need a set when
        several have the topic. The answer has the offsets before and after; with `dry_run` nothing
        else happens. GroupNotFound: no set knows it.
        """
        return self._run(
            self._core.reset_offsets(
                group, topic, to, queue_ids, dry_run=dry_run, broker_set=broker_set
            )
        )

    def delete_group(self, group: str) -> None:
        """In all broker sets. GroupNotEmpty while it has members in one."""
        self._run(self._core.delete_group(group))

    def alter_group(self, group: str, *, retries_max: int | None = None) -> pb.GroupSettings:
        """How often the group retries a message before it is a dead letter, in all broker sets.
        What is None stays as it is; the answer has what is so now.
        """
        return self._run(self._core.alter_group(group, retries_max=retries_max))

    def count_dead_letters(self) -> Answers[pb.DeadLetterCount]:
        """Of every group that has some, in all broker sets."""
        return self._run(self._core.count_dead_letters())

    def list_dead_letters(
        self,
        group: str,
        queue_offset: int | Mapping[str, int] = 0,
        messages_max: int = 0,
        *,
        broker_set: str = "",
    ) -> pb.ListDeadLettersResponse:
        """Of all broker sets, the oldest first, or of one. Each set counts its own: go on at
        `next_offsets` of the answer; with one set `next_offset` is enough. TopicNotFound: the group
        never had one.
        """
        return self._run(
            self._core.list_dead_letters(group, queue_offset, messages_max, broker_set=broker_set)
        )

    def resend_dead_letters(
        self, group: str, queue_offsets: Iterable[int] = (), *, broker_set: str = ""
    ) -> int:
        """Back to the group, counted from 0: these, which stay, or all, which are dead letters no
        more. How many there were. Single ones need a broker set when several have some of the
        group. MessageNotFound.
        """
        return self._run(
            self._core.resend_dead_letters(group, queue_offsets, broker_set=broker_set)
        )

    def purge_dead_letters(
        self, group: str, before_offset: int = 0, *, broker_set: str = ""
    ) -> int:
        """Those before this queue offset are gone, 0: all. How many there were. An offset needs a
        broker set when several have some of the group.
        """
        return self._run(self._core.purge_dead_letters(group, before_offset, broker_set=broker_set))

    def list_transactions(
        self, producer_group: str = "", transactions_max: int = 0
    ) -> pb.ListTransactionsResponse:
        """Those that are open in all broker sets, of one producer group or of all, the oldest
        first; `open` says how many there are.
        """
        return self._run(self._core.list_transactions(producer_group, transactions_max))

    def end_transaction(self, transaction_id: str, *, commit: bool) -> EndTransactionResponse:
        """Commits it, or rolls it back. TransactionNotFound: it has ended otherwise."""
        return self._run(self._core.end_transaction(transaction_id, commit=commit))

    def check_transaction(self, transaction_id: str) -> str:
        """Asks a living producer now; the id of that one. GroupNotFound: there is none."""
        return self._run(self._core.check_transaction(transaction_id))

    def get_message(self, message_id: str) -> pb.StoredMessage:
        """By the id that a send returned. MessageNotFound."""
        return self._run(self._core.get_message(message_id))

    def query_messages(
        self, topic: str, key: str, begin_ms: int = 0, end_ms: int = 0
    ) -> Answers[pb.StoredMessage]:
        """With this key, newest first, 64 at most; `end_ms` 0 is now."""
        return self._run(self._core.query_messages(topic, key, begin_ms, end_ms))

    def browse_messages(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        messages_max: int = 0,
        filter: FilterLike = None,  # noqa: A002
        *,
        broker_set: str = "",
    ) -> pb.MessageList:
        """From a queue offset on, without a group; go on at `next_offset` of the answer. The set
        may be left out when only one has the topic.
        """
        return self._run(
            self._core.browse_messages(
                topic, queue_id, queue_offset, messages_max, filter, broker_set=broker_set
            )
        )

    def add_broker_set(self, address: str) -> RouteResponse:
        """The set of the broker at `address` belongs to this cluster from now on: every set is told
        of all others, and knows them again after everything has stopped. Returns when each shows
        all of them. May be said again. IllegalRequest: it belongs to another cluster, has the name
        of another set, or a topic of another type.
        """
        return self._run(self._core.add_broker_set(address))

    def remove_broker_set(self, name: str, *, force: bool = False) -> None:
        """Neither set knows the other from now on. IllegalRequest, with numbers, while it has
        topics or messages that wait, and Unreachable when it cannot say; unless with `force`.
        May be said again.
        """
        self._run(self._core.remove_broker_set(name, force=force))

    def broker_status(self, server: str | None = None) -> pb.BrokerStatusResponse:
        """Of `server`; of any broker when that is None."""
        return self._run(self._core.broker_status(server))

    def get_config(self, server: str | None = None) -> list[pb.ConfigOption]:
        return self._run(self._core.get_config(server))

    def set_config(self, name: str, value: str, server: str | None = None) -> list[pb.ConfigOption]:
        """On one broker, until it stops; only options that are dynamic."""
        return self._run(self._core.set_config(name, value, server))

    def route(self, topics: Sequence[str] = ()) -> RouteResponse:
        """The brokers, who leads each set, and where these topics are; those that do not exist are
        left out.
        """
        return self._run(self._core.route(topics))

    def close(self) -> None:
        self._run(self._core.close())
