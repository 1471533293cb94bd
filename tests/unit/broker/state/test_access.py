"""Users and what they may do, as replicated state."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from mq.broker.state.access import BOOTSTRAP_USER, Access
from mq.wire.v1.security_pb2 import SESSION_KEY, AccessChange, AccessState
from mq.wire.v1.state_pb2 import ChangeAccess, Command
from tests.support.consensus import Node, on_loop
from tests.unit.broker.security.access_scene import (
    drop,
    drop_policy,
    key,
    namespace,
    password,
    policy,
    quota,
    user,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

LINE = "allow publish topic t"


def of(*changes: AccessChange) -> Access:
    access = Access()
    for one in changes:
        access.change([one])
    return access


NAMES = st.sampled_from(["a", "b", "bootstrap"])
IDS = st.sampled_from(["aaaaaaaaaaaa", "bbbbbbbbbbbb", "cccccccccccc"])
SUBJECTS = st.sampled_from(["user:a", "user:b", "role:r"])
LINES = st.sampled_from([LINE, "deny consume group g", "allow * topic x*"])
CHANGES = st.one_of(
    st.builds(user, NAMES),
    st.builds(lambda name: user(name, "superuser"), NAMES),
    st.builds(lambda name: user(name, "superuser", is_disabled=True), NAMES),
    st.builds(lambda name: drop(drop_user=name), NAMES),
    st.builds(key, NAMES, IDS),
    st.builds(lambda name, key_id: key(name, key_id, type=SESSION_KEY), NAMES, IDS),
    st.builds(lambda key_id: drop(drop_credential=key_id), IDS),
    st.builds(policy, SUBJECTS, LINES),
    st.builds(drop_policy, SUBJECTS, LINES),
    st.builds(lambda subject, n: quota(subject, streams=n), SUBJECTS, st.integers(0, 2)),
    st.builds(lambda subject: drop(drop_quota=subject), SUBJECTS),
    st.builds(namespace, NAMES),
    st.builds(lambda name: drop(drop_namespace=name), NAMES),
)


def test_a_line_is_dropped_however_an_entry_spells_it() -> None:
    six = "allow publish,consume,describe,create,alter,delete topic x"
    for put, dropped in ((six, "allow * topic x"), ("allow * topic x", six)):
        access = of(policy("role:r", put))
        assert list(access.lines_of("role:r")) == ["allow * topic x"]
        access.change([drop_policy("role:r", dropped)])
        assert not access.lines_of("role:r")
        assert access.digest() == Access().digest()
    # No leader proposes that.
    assert of(policy("role:r", "no policy"), drop_policy("role:r", "no policy")).policy_count == 0


@given(st.lists(CHANGES, max_size=20))
def test_a_copy_of_a_checkpoint_is_the_same_in_all(changes: Sequence[AccessChange]) -> None:
    access = of(*changes)
    copied = Access()
    copied.change([user("old", "superuser"), key("old")])
    copied.restore(AccessState.FromString(access.encode().SerializeToString()))
    assert copied.encode() == access.encode()
    assert copied.digest() == access.digest()
    assert copied.has_superuser() == access.has_superuser()
    assert copied.superusers() == access.superusers()
    assert copied.policy_count == access.policy_count == len(access.encode().policies)
    for name in ("a", "b", BOOTSTRAP_USER):
        assert [*copied.credentials_of(name)] == [*access.credentials_of(name)]
        assert all(one.user == name for one in access.credentials_of(name))
    assert sum(1 for one in access.encode().credentials) == access.credential_count


@given(st.lists(CHANGES, max_size=12), st.lists(CHANGES, max_size=12))
def test_a_fork_is_changed_by_itself(
    before: Sequence[AccessChange], after: Sequence[AccessChange]
) -> None:
    access = of(*before)
    state, digest = access.encode(), access.digest()
    fork = access.fork()
    for one in after:
        fork.change([one])
    assert (access.encode(), access.digest()) == (state, digest)
    again = of(*before, *after)
    assert (fork.encode(), fork.digest()) == (again.encode(), again.digest())


def test_sets_agree_whatever_the_order_the_times_and_the_sessions() -> None:
    one = of(user("a", created_at_ms=1), key("a"), policy("user:a", LINE), namespace("n"))
    other = of(
        namespace("n"),
        user("a", created_at_ms=2),
        policy("user:a", LINE),
        key("a", created_at_ms=7),
        key("a", "bbbbbbbbbbbb", type=SESSION_KEY),
        user("bootstrap", "superuser"),
        key("bootstrap", "cccccccccccc"),
    )
    assert one.digest() == other.digest()
    assert of().digest() == bytes(32)
    other.change([key("a", phrase="another")])
    assert one.digest() != other.digest()
    other.change([key("a")])
    assert one.digest() == other.digest()
    other.change([user("b")])
    assert one.digest() != other.digest()


def test_a_namespace_and_a_user_of_one_name_are_two_records() -> None:
    assert of(user("bootstrapped")).digest() != of(namespace("bootstrapped")).digest()
    assert of(namespace("bootstrap")).digest() != bytes(32)


def test_with_a_user_goes_all_that_it_had() -> None:
    access = of(
        user("a"), key("a"), password("a"), policy("user:a", LINE), quota("user:a", streams=1)
    )
    access.change([drop(drop_user="a")])
    assert access.encode() == AccessState(version=6)
    assert access.digest() == bytes(32)
    # A credential that comes behind the end of its user is of nobody.
    access.change([key("a")])
    assert access.credential("aaaaaaaaaaaa") is None


def test_the_one_time_token_ends_with_the_first_superuser_that_can_come_in() -> None:
    access = of(user("bootstrap", "superuser"), key("bootstrap"))
    assert not access.has_superuser()
    assert access.superusers() == frozenset()
    access.change([user("root", "superuser")])
    # It has no key yet: nobody could come in.
    assert access.credential("aaaaaaaaaaaa") is not None
    access.change([key("root", "bbbbbbbbbbbb", type=SESSION_KEY)])
    assert access.user("bootstrap") is not None
    access.change([key("root", "cccccccccccc")])
    assert access.user("bootstrap") is None
    assert access.credential("aaaaaaaaaaaa") is None
    assert access.has_superuser()


def test_a_disabled_superuser_is_none() -> None:
    access = of(user("root", "superuser"), key("root"))
    access.change([user("root", "superuser", is_disabled=True)])
    assert not access.has_superuser()
    assert access.superusers() == frozenset()


@on_loop
async def test_users_survive_by_the_log_and_by_a_checkpoint() -> None:
    node = Node()
    changes = [user("a", "r"), key("a"), policy("role:r", LINE), quota("default", streams=3)]
    await node.broker.writer.write(Command(change_access=ChangeAccess(changes=changes)))
    expected = node.machine.state.access.encode()
    assert expected.version == 1
    again = Node(node.vfs_after_kill())
    assert again.machine.state.access.encode() == expected
    other = Access()
    other.restore(expected)
    assert other.digest() == again.machine.state.access.digest()
