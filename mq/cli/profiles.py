"""Profiles: named connections to clusters, in ~/.config/mq/profiles.toml.

    default = "shop"

    [shop]
    server = "a.example:8081,b.example:8081"
    ca = "/etc/mq/ca.pem"
    api_key_file = "/run/secrets/mq-key"

The file holds secrets, so it is for its owner alone: mode 0600, and one that others may read is
refused. It is replaced as a whole, so that no reader sees half of it.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import stat
import tempfile
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mq.errors import IllegalConfig

DEFAULT = "default"
# What a profile may say, and the type of each.
KEYS: dict[str, type] = {
    "server": str,
    "tls": bool,
    "ca": str,
    "cert": str,
    "key": str,
    "api_key": str,
    "api_key_file": str,
    "namespace": str,
}
_PATHS = ("ca", "cert", "key", "api_key_file")
_OTHERS = 0o077
_NAME = re.compile(r"[A-Za-z0-9_-]+")
_HEADER = re.compile(r"\s*\[")


def path() -> Path:
    """Where the profiles of this user are, whether the file exists or not."""
    home = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(home) / "mq" / "profiles.toml"


@dataclasses.dataclass(frozen=True, slots=True)
class Profile:
    """One profile. `is_default`: it was not asked for by name."""

    name: str
    values: Mapping[str, Any] = dataclasses.field(repr=False)
    is_default: bool = False


def find(name: str | None) -> Profile | None:
    """The profile of this name; without a name the default one, or None. Raises IllegalConfig."""
    file = path()
    document = _read(file)
    chosen = name or document.get(DEFAULT)
    if chosen is None:
        return None
    known = _names(document)
    if chosen not in known:
        there = f"there are: {', '.join(known)}" if known else "there is none yet"
        raise IllegalConfig(f"{file}: no profile {chosen!r}; {there}")
    return Profile(chosen, _checked(file, chosen, document[chosen]), is_default=not name)


def names() -> list[str]:
    """Of all profiles. Raises IllegalConfig."""
    return _names(_read(path()))


def save(name: str, **values: str | bool | None) -> Path:
    """Writes these values into the profile, which is made if it is missing; None removes one.
    Everything else in the file stays. Returns where it is. Raises IllegalConfig.
    """
    if name == DEFAULT or not _NAME.fullmatch(name):
        raise IllegalConfig(f"profile {name!r}: use letters, digits, - and _, and not {DEFAULT!r}")
    if unknown := sorted(values.keys() - KEYS.keys()):
        raise IllegalConfig(f"a profile has no {unknown[0]!r}: {', '.join(KEYS)}")
    file = path()
    document = _read(file)
    table = {**document.get(name, {}), **values}
    wanted = {**document, name: {key: one for key, one in table.items() if one is not None}}
    _replace(file, _edited(_text(file), name, values, wanted))
    return file


def set_default(name: str) -> None:
    """The profile that is used without --profile."""
    file = path()
    wanted = {**_read(file), DEFAULT: name}
    lines = [one for one in _text(file).splitlines() if not re.match(r"\s*default\s*=", one)]
    text = "\n".join([f"{DEFAULT} = {_toml(name)}", *lines]) + "\n"
    _replace(file, text if _parsed(text) == wanted else _serialized(wanted))


# Reading


def _names(document: Mapping[str, Any]) -> list[str]:
    return sorted(one for one, table in document.items() if isinstance(table, dict))


def _read(file: Path) -> dict[str, Any]:
    try:
        with file.open("rb") as opened:
            mode = stat.S_IMODE(os.fstat(opened.fileno()).st_mode)
            if mode & _OTHERS:
                raise IllegalConfig(
                    f"{file} holds secrets and is open to others (mode {mode:04o}): "
                    f"chmod 600 {file}"
                )
            document = tomllib.load(opened)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise IllegalConfig(f"{file} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise IllegalConfig(f"{file} is no TOML: {error}") from None
    for key, value in document.items():
        if not isinstance(value, str if key == DEFAULT else dict):
            raise IllegalConfig(
                f'{file}: at the top there is only default = "NAME"; {key!r} must be a table, '
                f"[{key}]"
            )
    return document


def _checked(file: Path, name: str, table: Mapping[str, Any]) -> dict[str, Any]:
    for key, value in table.items():
        if key not in KEYS:
            raise IllegalConfig(f"{file}: [{name}] has no {key!r}: {', '.join(KEYS)}")
        if not isinstance(value, KEYS[key]):
            kind = "true or false" if KEYS[key] is bool else "text"
            raise IllegalConfig(f"{file}: {key} of [{name}] must be {kind}")
    # As in a shell; relative ones are relative to the file.
    return {
        key: str(file.parent / Path(value).expanduser()) if key in _PATHS else value
        for key, value in table.items()
    }


# Writing


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8") if file.exists() else ""


def _edited(
    text: str, name: str, values: Mapping[str, str | bool | None], wanted: Mapping[str, Any]
) -> str:
    """The text with these values in the table: its comments stay, unless it is written in a way
    that is not understood here.
    """
    lines = text.splitlines()
    headers = [at for at, line in enumerate(lines) if _HEADER.match(line)]
    starts = [at for at in headers if re.match(rf"\s*\[\s*{re.escape(name)}\s*\]", lines[at])]
    if not starts:
        lines += [*([""] if lines else []), f"[{name}]"]
        starts, headers = [len(lines) - 1], [*headers, len(lines) - 1]
    start = starts[0]
    end = min((at for at in headers if at > start), default=len(lines))
    kept = [one for one in lines[start + 1 : end] if _key(one) not in values]
    while kept and not kept[-1].strip():
        kept.pop()
    added = [f"{key} = {_toml(one)}" for key, one in values.items() if one is not None]
    behind = ["", *lines[end:]] if lines[end:] else []
    made = "\n".join([*lines[: start + 1], *kept, *added, *behind]) + "\n"
    return made if _parsed(made) == wanted else _serialized(wanted)


def _key(line: str) -> str:
    found = re.match(r"\s*([A-Za-z0-9_-]+)\s*=", line)
    return found[1] if found else ""


def _parsed(text: str) -> dict[str, Any] | None:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return None


def _serialized(document: Mapping[str, Any]) -> str:
    top = [f"{key} = {_toml(one)}" for key, one in document.items() if not isinstance(one, dict)]
    tables = [
        "\n".join([f"[{name}]", *(f"{key} = {_toml(one)}" for key, one in table.items())])
        for name, table in document.items()
        if isinstance(table, dict)
    ]
    return "\n\n".join([*("\n".join(top),) * bool(top), *tables]) + "\n"


def _toml(value: object) -> str:
    # Text of JSON is text of TOML but for one character, which no value has.
    return json.dumps(value, ensure_ascii=False)


def _replace(file: Path, text: str) -> None:
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # mkstemp makes it 0600.
        descriptor, fresh = tempfile.mkstemp(dir=file.parent, prefix=".profiles-")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as opened:
                opened.write(text)
                opened.flush()
                os.fsync(opened.fileno())
            Path(fresh).replace(file)
        except BaseException:
            Path(fresh).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise IllegalConfig(f"{file} cannot be written: {error.strerror}") from error
