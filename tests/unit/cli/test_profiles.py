"""Profiles: for their owner alone, found by name, written without losing the others."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from mq.cli import profiles
from mq.errors import IllegalConfig

SECRET = "mqk_abcdefghijkl_" + "s" * 43

TEXT = f"""\
# My clusters.
default = "shop"

[shop]   # production
server = "a:1,b:2"
ca = "ca.pem"  # of the company
api_key = "{SECRET}"

# The one for tests.
[test]
server = "t:1"
tls = true
"""


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return profiles.path()


def written(file: Path, text: str = TEXT, mode: int = 0o600) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    file.chmod(mode)


def test_they_are_where_configuration_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: Path
) -> None:
    assert file == tmp_path / "config" / "mq" / "profiles.toml"
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert profiles.path() == tmp_path / ".config" / "mq" / "profiles.toml"


def test_one_is_found_by_its_name_or_as_the_default(file: Path) -> None:
    written(file)
    found = profiles.find(None)
    assert found is not None
    assert (found.name, found.is_default) == ("shop", True)
    assert found.values["ca"] == str(file.parent / "ca.pem"), "beside the profiles"
    assert found.values["api_key"] == SECRET
    named = profiles.find("test")
    assert named is not None
    assert (named.is_default, dict(named.values)) == (False, {"server": "t:1", "tls": True})
    assert "sss" not in repr(found)


def test_without_a_file_there_is_no_default_and_no_profile_of_a_name(file: Path) -> None:
    assert profiles.find(None) is None
    with pytest.raises(IllegalConfig, match="no profile 'shop'; there is none yet"):
        profiles.find("shop")
    written(file)
    with pytest.raises(IllegalConfig, match="no profile 'shopp'; there are: shop, test"):
        profiles.find("shopp")


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660])
def test_a_file_that_others_may_read_is_refused_with_what_to_do(file: Path, mode: int) -> None:
    written(file, mode=mode)
    for name in (None, "shop"):
        with pytest.raises(IllegalConfig) as raised:
            profiles.find(name)
        assert f"(mode {mode:04o}): chmod 600 {file}" in str(raised.value)
    with pytest.raises(IllegalConfig, match="chmod 600"):
        profiles.save("shop", namespace="n")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("default = shop", "is no TOML"),
        ("default = 7", "only default"),
        ('server = "a:1"', "'server' must be a table, \\[server\\]"),
        ('[p]\napi-key = "sss"', "\\[p\\] has no 'api-key': server, tls,"),
        ("[p]\napi_key = 7", "api_key of \\[p\\] must be text"),
        ('[p]\ntls = "yes"', "tls of \\[p\\] must be true or false"),
    ],
)
def test_a_slip_is_told_without_the_value(file: Path, text: str, told: str) -> None:
    written(file, text)
    with pytest.raises(IllegalConfig, match=told) as raised:
        profiles.find("p")
    assert "sss" not in str(raised.value)


def test_saving_makes_the_file_for_its_owner_alone(file: Path) -> None:
    assert profiles.save("shop", server="a:1", tls=True, api_key=SECRET) == file
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert list(file.parent.iterdir()) == [file], "nothing is left beside it"
    found = profiles.find("shop")
    assert found is not None
    assert dict(found.values) == {"server": "a:1", "tls": True, "api_key": SECRET}
    assert profiles.find(None) is None


def test_saving_keeps_the_other_profiles_and_the_comments(file: Path) -> None:
    written(file)
    profiles.save("shop", api_key="mqk_other", namespace="n")
    text = file.read_text()
    for kept in ("# My clusters.", "# production", "# of the company", "# The one for tests."):
        assert kept in text
    assert SECRET not in text
    shop, test = profiles.find("shop"), profiles.find("test")
    assert shop is not None
    assert test is not None
    assert (shop.values["api_key"], shop.values["namespace"]) == ("mqk_other", "n")
    assert (shop.values["server"], test.values["server"]) == ("a:1,b:2", "t:1")
    profiles.save("third", server='say "x":1')
    profiles.save("shop", api_key=None)
    third, shop = profiles.find("third"), profiles.find(None)
    assert third is not None
    assert shop is not None
    assert third.values["server"] == 'say "x":1'
    assert "api_key" not in shop.values


def test_a_file_that_is_written_otherwise_keeps_its_values(file: Path) -> None:
    written(file, 'shop = { server = "a:1", api_key = "old" }\ntest.server = "t:1"\n')
    profiles.save("shop", api_key="new")
    shop, test = profiles.find("shop"), profiles.find("test")
    assert shop is not None
    assert test is not None
    assert dict(shop.values) == {"server": "a:1", "api_key": "new"}
    assert dict(test.values) == {"server": "t:1"}


def test_the_default_is_changed(file: Path) -> None:
    written(file)
    profiles.set_default("test")
    found = profiles.find(None)
    assert found is not None
    assert found.name == "test"
    assert "# production" in file.read_text()


@pytest.mark.parametrize("name", ["default", "a b", "", "a.b", "a]\n[b"])
def test_a_name_that_toml_would_read_otherwise_is_refused(name: str, file: Path) -> None:
    with pytest.raises(IllegalConfig, match="use letters, digits"):
        profiles.save(name, server="a:1")
    assert not file.exists()
    with pytest.raises(IllegalConfig, match="a profile has no 'sever'"):
        profiles.save("a", sever="a:1")
