"""The first administrator of a broker set: by a file that names it, or by a one-time token."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from mq.access import keys, passwords
from mq.access.keys import ApiKey
from mq.admin.bootstrap import TOKEN_FILE, Bootstrap
from mq.errors import IllegalConfig
from tests.support.consensus import Node, on_loop
from tests.unit.broker.security.access_scene import drop, key, trail, user


def admin_file(directory: Path, text: str) -> str:
    path = directory / "admin"
    path.write_text(text)
    path.chmod(0o600)
    return str(path)


def token(directory: Path) -> ApiKey | None:
    path = directory / TOKEN_FILE
    return keys.parse(path.read_text().strip()) if path.exists() else None


def may_all(node: Node, one: ApiKey | None) -> bool:
    assert one is not None
    return node.broker.gate.identify(f"Bearer {one.text}", (), "").is_superuser


@on_loop
async def test_an_administrator_with_a_key_is_created_once(tmp_path: Path) -> None:
    node, made = Node(auth="required"), keys.new()
    bootstrap = Bootstrap(node.broker, str(tmp_path), admin_file(tmp_path, f"root:{made.text}"))
    for _ in range(3):
        await bootstrap.step()
    assert may_all(node, made)
    assert [(one["what"], one["subject"]) for one in trail(node)] == [
        ("bootstrap", "user:root"),
        ("bootstrap", "user:root"),
    ]
    assert token(tmp_path) is None
    # Whatever the file says later.
    again = Bootstrap(node.broker, str(tmp_path), admin_file(tmp_path, "other:correct horse"))
    await again.step()
    assert node.machine.state.access.user("other") is None


@on_loop
async def test_an_administrator_with_a_password_is_created_also_without_authentication(
    tmp_path: Path,
) -> None:
    node = Node()
    file = admin_file(tmp_path, "root:correct horse")
    await Bootstrap(node.broker, str(tmp_path), file).step()
    credential = node.machine.state.access.credential("password-root")
    assert credential is not None
    assert passwords.is_right("correct horse", credential.proof)


@on_loop
async def test_a_user_that_is_there_is_left_as_it_is(tmp_path: Path) -> None:
    node = Node(auth="required")
    await node.change_access(user("root"))
    bootstrap = Bootstrap(node.broker, str(tmp_path), admin_file(tmp_path, "root:correct horse"))
    with pytest.raises(IllegalConfig, match="left as it is"):
        await bootstrap.step()
    found = node.machine.state.access.user("root")
    assert found is not None
    assert not found.roles


@pytest.mark.parametrize("name", ["bootstrap", "cluster"])
@on_loop
async def test_users_of_the_broker_itself_are_no_administrators(tmp_path: Path, name: str) -> None:
    with pytest.raises(IllegalConfig, match="own"):
        Bootstrap(Node().broker, str(tmp_path), admin_file(tmp_path, f"{name}:correct horse"))


@on_loop
async def test_a_token_serves_until_the_first_superuser_can_come_in(tmp_path: Path) -> None:
    node = Node(auth="required")
    bootstrap = Bootstrap(node.broker, str(tmp_path), "")
    await bootstrap.step()
    made = token(tmp_path)
    assert made is not None
    assert stat.S_IMODE((tmp_path / TOKEN_FILE).stat().st_mode) == 0o600
    assert may_all(node, made)
    await bootstrap.step()
    assert token(tmp_path) == made
    assert made.secret not in repr(trail(node))
    await node.change_access(user("root", "superuser"))
    await bootstrap.step()
    assert may_all(node, made)
    await node.change_access(key("root"))
    await bootstrap.step()
    assert not (tmp_path / TOKEN_FILE).exists()
    assert node.machine.state.access.user("bootstrap") is None


@on_loop
async def test_without_authentication_there_is_no_token(tmp_path: Path) -> None:
    node = Node()
    await Bootstrap(node.broker, str(tmp_path), "").step()
    assert token(tmp_path) is None


@on_loop
async def test_another_leader_makes_another_token_and_the_first_one_is_over(
    tmp_path: Path,
) -> None:
    """Two nodes share a state; each has files of its own."""
    node, places = Node(auth="required"), [tmp_path / "n0", tmp_path / "n1"]
    for place in places:
        place.mkdir()
    first, second = (Bootstrap(node.broker, str(place), "") for place in places)
    await first.step()
    old = token(places[0])
    await second.step()
    assert may_all(node, token(places[1]))
    assert old is not None
    # A node that does not lead deletes what is no token any longer.
    node.consensus.depose()
    node.consensus.followed = node.consensus.followed._replace(term=node.consensus.term)
    await second.step()
    await first.step()
    assert token(places[0]) is None
    assert token(places[1]) is not None
    # A leader that has lost its file makes another one.
    node.consensus.elect()
    (places[1] / TOKEN_FILE).unlink()
    await second.step()
    assert may_all(node, token(places[1]))
    assert len([*node.machine.state.access.credentials_of("bootstrap")]) == 1


@on_loop
async def test_a_node_that_does_not_lead_makes_nothing(tmp_path: Path) -> None:
    node = Node(auth="required")
    node.consensus.depose()
    count = len(node.consensus.proposed)
    file = admin_file(tmp_path, "root:correct horse")
    for admin in ("", file):
        await Bootstrap(node.broker, str(tmp_path), admin).step()
    assert token(tmp_path) is None
    assert len(node.consensus.proposed) == count


@on_loop
async def test_a_superuser_of_a_certificate_can_end_the_token(tmp_path: Path) -> None:
    node = Node(auth="required")
    bootstrap = Bootstrap(node.broker, str(tmp_path), "")
    await bootstrap.step()
    await node.change_access(user("admin.example.com", "superuser"))
    await node.change_access(drop(drop_user="bootstrap"))
    await bootstrap.step()
    assert token(tmp_path) is None
    assert node.machine.state.access.user("bootstrap") is None


@on_loop
async def test_a_token_is_made_when_all_superusers_have_expired(tmp_path: Path) -> None:
    node = Node(auth="required")
    bootstrap = Bootstrap(node.broker, str(tmp_path), "")
    await node.change_access(user("root", "superuser"), key("root", expires_at_ms=2_000_000))
    await bootstrap.step()
    assert token(tmp_path) is None
    node.now_ms = 2_000_000
    await bootstrap.step()
    made = token(tmp_path)
    assert may_all(node, made)
    # It stays over other changes, and goes with a new way in.
    await node.change_access(user("alice"), key("alice", "bbbbbbbbbbbb"))
    assert may_all(node, made)
    await node.change_access(key("root", "cccccccccccc"))
    await bootstrap.step()
    assert token(tmp_path) is None
    assert node.machine.state.access.user("bootstrap") is None


@on_loop
async def test_an_operator_who_has_lost_all_keys_asks_for_a_token(tmp_path: Path) -> None:
    node = Node(auth="required")
    bootstrap = Bootstrap(node.broker, str(tmp_path), admin_file(tmp_path, "root:correct horse"))
    await bootstrap.step()
    (tmp_path / TOKEN_FILE).touch()
    await bootstrap.step()
    assert may_all(node, token(tmp_path))
    assert stat.S_IMODE((tmp_path / TOKEN_FILE).stat().st_mode) == 0o600
    await node.change_access(key("root"))
    await bootstrap.step()
    assert not (tmp_path / TOKEN_FILE).exists()
    # Where it does not lead, the file is taken away: the leader is to be asked.
    node.consensus.depose()
    node.consensus.followed = node.consensus.followed._replace(term=node.consensus.term)
    (tmp_path / TOKEN_FILE).touch()
    await bootstrap.step()
    assert not (tmp_path / TOKEN_FILE).exists()
    assert node.machine.state.access.user("bootstrap") is None
