"""docs/CLIENT.md lists every option of the clients, with the defaults that they have; the generated
clients are current.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mq import client
from mq.client import aio, public
from mq.client.cluster.channels import Security
from tools import generate_sync

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "CLIENT.md").read_text(encoding="utf-8")


def documented(heading: str) -> dict[str, str]:
    """Defaults by option, as the page writes them."""
    part = re.split(r"^## ", PAGE.partition(f"\n## {heading}\n")[2], flags=re.MULTILINE)[0]
    rows = re.findall(r"^\| ((?:`\w+`[^|]*)+) \| ([^|]*) \|", part, re.MULTILINE)
    found: dict[str, str] = {}
    for names, defaults in rows:
        options = re.findall(r"`(\w+)`", names.partition("(")[0])
        # Two options in a row have their defaults behind each other.
        parts = defaults.split(", ") if len(options) == 2 else [defaults]
        found.update(zip(options, parts, strict=True))
    return found


OF_ALL_CLIENTS = {one.name for one in dataclasses.fields(Security)}


def actual(*classes: Callable[..., object]) -> dict[str, str]:
    """Without those of all clients, which have a table of their own."""
    found = {}
    for one in classes:
        for name, parameter in inspect.signature(one).parameters.items():
            is_option = parameter.kind is inspect.Parameter.KEYWORD_ONLY
            if is_option and name not in OF_ALL_CLIENTS:
                found[name] = shown(parameter.default)
    return found


def shown(default: Any) -> str:
    match default:
        case True:
            return "yes"
        case None | "":
            return "none"
        case str():
            return f'`"{default}"`'
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if default >= 16 * unit and default % unit == 0:
            return f"{default // unit} {name}"
    return f"{default:,g}"


def test_the_producers_options_are_all_there_with_their_defaults() -> None:
    expected = actual(client.Producer) | {"producer_id": "made up"}
    assert documented("Producer") == expected
    assert actual(aio.Producer) == actual(client.Producer)


def test_every_client_takes_the_options_about_security_which_are_on_the_page() -> None:
    part = PAGE.partition("\n## TLS and identity\n")[2].partition("\n### ")[0]
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", part, re.MULTILINE)
    on_page = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert on_page - {"UNAUTHENTICATED", "PERMISSION_DENIED"} == OF_ALL_CLIENTS
    for name in public.CLIENTS:
        for face in (client, aio):
            assert set(inspect.signature(getattr(face, name)).parameters) >= OF_ALL_CLIENTS, name


def test_the_consumers_options_are_all_there_with_their_defaults() -> None:
    expected = actual(client.Consumer, client.PushConsumer)
    assert documented("Consumers") == expected | {"member_id": "host, process, random"}
    others = actual(aio.Consumer, aio.PushConsumer)
    assert others.pop("tasks") == expected.pop("threads")
    assert others == expected


def test_every_name_of_the_library_is_on_the_page() -> None:
    assert [name for name in client.__all__ if f"`{name}`" not in PAGE] == []
    assert set(client.__all__) == set(aio.__all__)


def test_the_clients_without_asyncio_are_what_those_with_it_generate() -> None:
    for path, text in generate_sync.generate().items():
        assert path.read_text(encoding="utf-8") == text, f"{path} is old: run `make sync`"


@pytest.mark.parametrize("name", public.CLIENTS)
def test_a_client_has_the_same_methods_with_asyncio_and_without(name: str) -> None:
    """Also those that are written by hand."""
    with_it, without = methods(getattr(aio, name)), methods(getattr(client, name))
    assert without.pop("check_threads", None) in (None, "4")
    assert without == with_it


def methods(kind: type[Any]) -> dict[str, str]:
    """The parameters of each, and of the constructor."""
    found = {
        f"{name}.{parameter.name}": str(parameter).partition(":")[2]
        for name, one in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_")
        for parameter in inspect.signature(one).parameters.values()
    }
    made = inspect.signature(kind).parameters.values()
    found |= {one.name.replace("tasks", "threads"): str(one.default) for one in made}
    return found | {name: "" for name in dir(kind) if not name.startswith("_")}
