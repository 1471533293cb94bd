"""The options of a node, from wherever their values come.

They are the fields of `mq.sections`. The TOML file, the environment variables, the command-line
flags, their help and the rendering of `mq config` all follow from them, so a new field is a new
option everywhere. Later sources win: defaults, file, environment, flags. Every value is checked
where it is read, also one that a later source overrides, so that the error names the file and key,
the variable or the flag.

Bytes and milliseconds are plain numbers or human ("64MiB", "10s"); the key says which unit it has.
This module reads no process state but the file: the environment and the flags are handed in.
"""

from __future__ import annotations

import difflib
import functools
import itertools
import json
import re
import textwrap
import tomllib
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args, get_origin

import msgspec
from msgspec import Meta

from mq.errors import IllegalConfig
from mq.sections import (
    BrokerConfig,
    Config,
    LogConfig,
    NodeConfig,
    RaftConfig,
    RetentionConfig,
    StoreConfig,
    TransactionsConfig,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

__all__ = [
    "BrokerConfig",
    "Config",
    "LogConfig",
    "NodeConfig",
    "Option",
    "RaftConfig",
    "RetentionConfig",
    "StoreConfig",
    "TransactionsConfig",
    "check_variables",
    "given",
    "load",
    "of_kubernetes",
    "options",
    "to_toml",
]

FILE_VARIABLE = "MQ_CONFIG"
# Tells the commands that talk to brokers where those are; no option of a node.
SERVER_VARIABLE = "MQ_SERVER"
# The same: how to connect, by the names of the arguments of clients; and the profile that says it.
CLIENT_VARIABLES = {
    name: f"MQ_{name.upper()}"
    for name in ("tls", "ca", "cert", "key", "api_key", "api_key_file", "namespace")
}
PROFILE_VARIABLE = "MQ_PROFILE"
# A second name of the option, for those that set up containers.
ADMIN_VARIABLE = "MQ_BOOTSTRAP_ADMIN_FILE"

_PREFIX = "MQ_"
# Kubernetes writes the place of every Service of a namespace into the environment of its pods. A
# Service called mq, or mq-<anything>, gets variables that start like ours; one called mq-broker
# even an MQ_BROKER_PORT, whose value tells it from the option.
_KUBERNETES = {
    re.compile(rf"{_PREFIX}(?:[A-Z0-9_]+_)?{name}"): re.compile(value)
    for name, value in (
        ("SERVICE_HOST", r"[0-9a-fA-F.:]+"),
        (r"SERVICE_PORT(?:_[A-Z0-9_]+)?", r"[0-9]{1,5}"),
        (r"PORT(?:_[0-9]{1,5}_(?:TCP|UDP|SCTP))?", r"(?:tcp|udp|sctp)://\S+"),
        (r"PORT_[0-9]{1,5}_(?:TCP|UDP|SCTP)_PROTO", r"tcp|udp|sctp"),
        (r"PORT_[0-9]{1,5}_(?:TCP|UDP|SCTP)_PORT", r"[0-9]{1,5}"),
        (r"PORT_[0-9]{1,5}_(?:TCP|UDP|SCTP)_ADDR", r"[0-9a-fA-F.:]+"),
    )
}
_SIZE_UNITS = {
    "b": 1,
    **{f"{letter}ib": 1 << (10 * power) for power, letter in enumerate("kmgtpe", start=1)},
    **{f"{letter}b": 1000**power for power, letter in enumerate("kmgtpe", start=1)},
}
_DURATION_UNITS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_QUANTITY = re.compile(r"\s*([0-9]{1,18}(?:\.[0-9]{1,18})?)\s*([A-Za-z]+)\s*")


@dataclass(frozen=True, slots=True)
class Option:
    """One option as its sources and its help see it."""

    section: str
    key: str
    type: Any
    default: Any
    description: str
    legal: str
    metavar: str
    short_flag: str
    former_key: str

    @property
    def name(self) -> str:
        """As in `store.segment_bytes`: the key of `flags` in `load`."""
        return f"{self.section}.{self.key}"

    @property
    def flag(self) -> str:
        """The one that follows from section and key."""
        return f"--{self.section}-{self.key}".replace("_", "-")

    @property
    def flags(self) -> tuple[str, ...]:
        """All that are accepted."""
        former = f"--{self.section}-{self.former_key}" if self.former_key else ""
        return tuple(filter(None, (self.short_flag, self.flag, former)))

    @property
    def env(self) -> str:
        return f"{_PREFIX}{self.section}_{self.key}".upper()

    @property
    def former_env(self) -> str:
        """Accepted, too; empty: there is none."""
        return f"{_PREFIX}{self.section}_{self.former_key}".upper() if self.former_key else ""

    def value_in(self, config: Config) -> Any:
        return getattr(getattr(config, self.section), self.key)

    def text(self, value: Any) -> str:
        """The value for people: 1073741824 is 1GiB where the key counts bytes."""
        return _text(self.key, value)


class _Setting(NamedTuple):
    option: Option
    value: Any
    source: str


def options() -> Iterator[Option]:
    """All options, section by section, in the order of their declaration."""
    return iter(_catalogue().values())


def load(file: str | None, environ: Mapping[str, str], flags: Mapping[str, Any]) -> Config:
    """The effective configuration, or IllegalConfig with the source of the first illegal value.

    `file` None means the one that MQ_CONFIG names, or none. A flag whose value is None was not
    given. Reads nothing but the file.
    """
    settings = _settings(file, environ, flags)
    sections: dict[str, dict[str, Any]] = {}
    for option, value, _ in settings.values():
        sections.setdefault(option.section, {})[option.key] = value
    config = msgspec.convert(sections, Config)
    # In another order a step of the defence against a full disk would never be reached.
    ratios = ("clean_expired_ratio", "clean_oldest_ratio", "refuse_writes_ratio")
    _check_rising(config, settings, *(f"retention.{key}" for key in ratios))
    _check_rising(config, settings, "store.message_bytes_max", "store.entry_bytes_max")
    return config


def given(file: str | None, environ: Mapping[str, str], flags: Mapping[str, Any]) -> set[str]:
    """The names of the options that a source sets; the others are at their default. As `load`."""
    return set(_settings(file, environ, flags))


def check_variables(environ: Mapping[str, str]) -> None:
    """Raises IllegalConfig for an unknown variable with our prefix. For commands that load no
    configuration: a typo is reported there as well.
    """
    if any(name.startswith(_PREFIX) and name != SERVER_VARIABLE for name in environ):
        _own_variables(environ)


def of_kubernetes(environ: Mapping[str, str]) -> list[str]:
    """The variables that Kubernetes has written for Services whose names start with mq."""
    return sorted(
        variable
        for variable, value in environ.items()
        if variable.startswith(_PREFIX)
        and any(
            name.fullmatch(variable) and form.fullmatch(value) for name, form in _KUBERNETES.items()
        )
    )


def to_toml(config: Config) -> str:
    """A file that `load` reads back as the same configuration, each key under its description."""
    lines: list[str] = []
    for section, members in itertools.groupby(options(), key=lambda option: option.section):
        lines += ["", f"[{section}]"] if lines else [f"[{section}]"]
        for option in members:
            default = option.text(option.default)
            comment = f"{option.description} Legal: {option.legal}. Default: {default}."
            lines += textwrap.wrap(
                comment, 96, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False
            )
            lines.append(f"{option.key} = {_toml_value(option, option.value_in(config))}")
    return "\n".join(lines) + "\n"


# The three sources.


def _settings(
    file: str | None, environ: Mapping[str, str], flags: Mapping[str, Any]
) -> dict[str, _Setting]:
    origin = "--config"
    if file is None:
        file, origin = environ.get(FILE_VARIABLE), FILE_VARIABLE
    return {
        setting.option.name: setting
        for setting in itertools.chain(
            _from_file(file, origin) if file is not None else (),
            _from_environ(environ),
            _from_flags(flags),
        )
    }


def _from_file(path: str, origin: str) -> Iterator[_Setting]:
    for section, table in _read_toml(path, origin).items():
        if section not in Config.__struct_fields__:
            hint = _hint(section, Config.__struct_fields__)
            what = "section" if isinstance(table, dict) else "key"
            raise IllegalConfig(f"{path}: unknown {what} {_quoted(section)} at top level{hint}")
        if not isinstance(table, dict):
            raise IllegalConfig(
                f"{path}: {section} is {_quoted(table)}: write it as a section, [{section}]"
            )
        own = (each for each in options() if each.section == section and each.former_key)
        former = {each.former_key: each for each in own}
        # What has its present name, too, counts by that.
        for key, value in sorted(table.items(), key=lambda item: item[0] not in former):
            name = f"{section}.{key}"
            option = _catalogue().get(name) or former.get(key)
            if option is None:
                legal = [each.name for each in options() if each.section == section]
                raise IllegalConfig(f"{path}: unknown key {name}{_hint(key, legal)}")
            yield _checked(option, value, f"{path}: {name}")


def _from_environ(environ: Mapping[str, str]) -> Iterator[_Setting]:
    for variable, option in _own_variables(environ).items():
        if option is not None:
            yield _checked(option, environ[variable], f"variable {variable}")


def _own_variables(environ: Mapping[str, str]) -> dict[str, Option | None]:
    """The variables that are ours, and the option that each sets; None: it sets none of a node.
    IllegalConfig for one that is not known.
    """
    others_known = FILE_VARIABLE, SERVER_VARIABLE, PROFILE_VARIABLE, *CLIENT_VARIABLES.values()
    by_variable: dict[str, Option | None] = dict.fromkeys(others_known)
    # Former names first: what has its present name, too, counts by that.
    by_variable |= {option.former_env: option for option in options() if option.former_env}
    by_variable |= {option.env: option for option in options()}
    by_variable[ADMIN_VARIABLE] = _catalogue()["auth.bootstrap_admin_file"]
    others = set(of_kubernetes(environ))
    own = [name for name in environ if name.startswith(_PREFIX) and name not in others]
    for variable in own:
        if variable not in by_variable:
            hint = _nearest(variable, {each: each for each in by_variable})
            raise IllegalConfig(
                f"unknown variable {variable}{hint} Legal: {', '.join(others_known)}, "
                f"and {_PREFIX}<SECTION>_<KEY> of all that `mq config` prints"
            )
    return {name: option for name, option in by_variable.items() if name in own}


def _from_flags(flags: Mapping[str, Any]) -> Iterator[_Setting]:
    for name, value in flags.items():
        if value is None:
            continue
        option = _catalogue().get(name)
        if option is None:
            hint = _nearest(name, {each: each for each in _catalogue()})
            raise IllegalConfig(
                f"unknown flag for {name}{hint} Legal: what `mq server --help` lists"
            )
        yield _checked(option, value, f"flag {'/'.join(option.flags)}")


def _read_toml(path: str, origin: str) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except OSError as error:
        reason = error.strerror or str(error)
        raise IllegalConfig(
            f"{path!r}, named by {origin}, cannot be read: {reason}; name a TOML file"
        ) from error
    except ValueError as error:  # TOML syntax, bytes that are not UTF-8, a NUL in the path
        raise IllegalConfig(f"{path}, named by {origin}, is not legal TOML: {error}") from error


def _checked(option: Option, value: Any, source: str) -> _Setting:
    try:
        legal = msgspec.convert(_plain(option.key, value), option.type, strict=False)
    except msgspec.ValidationError as error:
        raise IllegalConfig(
            f"{source}: {_quoted(value)} is not legal: use {option.legal}"
        ) from error
    return _Setting(option, legal, source)


def _check_rising(config: Config, settings: Mapping[str, _Setting], *names: str) -> None:
    """Raises IllegalConfig unless the values of these options ascend."""
    values = [_catalogue()[name].value_in(config) for name in names]
    if all(low < high for low, high in itertools.pairwise(values)):
        return
    found = []
    for name, value in zip(names, values, strict=True):
        setting = settings.get(name)
        text = _catalogue()[name].text(value)
        found.append(f"{name} = {text} ({setting.source if setting else 'default'})")
    raise IllegalConfig(f"{' < '.join(names)} must hold, but found are {', '.join(found)}")


# Texts of errors.


def _quoted(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _hint(key: str, legal: Iterable[str]) -> str:
    """A key in the wrong section is the likeliest slip, a typing error the next."""
    named = {option.key: option.name for option in options() if option.key == key}
    # Without their section, which they share: it would make any two keys look alike.
    near = named or {name.rpartition(".")[2]: name for name in legal}
    return f"{_nearest(key, near)} Legal: {', '.join(legal)}"


def _nearest(word: str, names: Mapping[str, str]) -> str:
    """A question for the name whose word is close to this one."""
    found = difflib.get_close_matches(word, names, n=1)
    return f", did you mean {names[found[0]]}?" if found else "."


# Units.


def _units(key: str) -> dict[str, int] | None:
    words = key.split("_")
    if "bytes" in words:
        return _SIZE_UNITS
    return _DURATION_UNITS if "ms" in words else None


def _plain(key: str, value: Any) -> Any:
    """The number that "64MiB" means; what is no whole number of the key's unit stays as it is."""
    units = _units(key)
    if units is None or not isinstance(value, str):
        return value
    match = _QUANTITY.fullmatch(value)
    unit = units.get(match[2].lower()) if match else None
    if match is None or unit is None:
        return value
    amount = Fraction(match[1]) * unit
    return int(amount) if amount.denominator == 1 else value


def _text(key: str, value: Any) -> str:
    units = _units(key)
    if units is _SIZE_UNITS:
        return _in_largest_unit(value, ("EiB", "PiB", "TiB", "GiB", "MiB", "KiB"), units)
    if units is _DURATION_UNITS:
        return _in_largest_unit(value, ("d", "h", "m", "s", "ms"), units)
    return str(value)


def _in_largest_unit(value: int, names: Iterable[str], units: Mapping[str, int]) -> str:
    for name in names:
        if value and value % units[name.lower()] == 0:
            return f"{value // units[name.lower()]}{name}"
    return str(value)


def _toml_value(option: Option, value: Any) -> str:
    text = option.text(value)
    # JSON's escapes are legal TOML, and what they differ in no legal value contains.
    quoted = isinstance(value, str) or text != str(value)
    return json.dumps(text, ensure_ascii=False) if quoted else text


# From the fields to the options.


@functools.cache
def _catalogue() -> dict[str, Option]:
    found = (
        _option(section.name, field)
        for section in msgspec.structs.fields(Config)
        for field in msgspec.structs.fields(section.type)
    )
    return {option.name: option for option in found}


def _option(section: str, field: msgspec.structs.FieldInfo) -> Option:
    kind, *metas = get_args(field.type)
    extra: dict[str, str] = {}
    for meta in metas:
        extra |= meta.extra or {}
    return Option(
        section=section,
        key=field.name,
        type=field.type,
        default=field.default,
        description=next(meta.description for meta in metas if meta.description),
        legal=extra.get("legal") or _legal(field.name, kind, metas),
        metavar=extra.get("metavar") or _metavar(field.name, kind),
        short_flag=extra.get("flag", ""),
        former_key=extra.get("former", ""),
    )


def _legal(key: str, kind: Any, metas: Iterable[Meta]) -> str:
    if get_origin(kind) is Literal:
        return f"one of {', '.join(get_args(kind))}"
    if kind is float:
        return "a number above 0 and up to 1"
    bounds = next(meta for meta in metas if meta.ge is not None)
    extent = f"from {_text(key, bounds.ge)} to {_text(key, bounds.le)}"
    units = _units(key)
    if units is _SIZE_UNITS:
        return f"a size {extent}, in bytes or like 64MiB"
    if units is _DURATION_UNITS:
        return f"a duration {extent}, in milliseconds or like 10s"
    return f"a whole number {extent}"


def _metavar(key: str, kind: Any) -> str:
    if get_origin(kind) is Literal:
        return f"[{'|'.join(get_args(kind))}]"
    if kind is float:
        return "RATIO"
    units = _units(key)
    if units is None:
        return "NUMBER"
    return "SIZE" if units is _SIZE_UNITS else "DURATION"
