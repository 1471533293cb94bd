"""Configuration: legal values, sources, their precedence, and the errors of wrong ones."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mq import config
from mq.config import Config
from mq.errors import Code, IllegalConfig
from mq.sections import GIB, KIB, MIB

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    WriteFile = Callable[[str], str]


@pytest.fixture
def write_file(tmp_path: Path) -> WriteFile:
    def write(text: str) -> str:
        path = tmp_path / "mq.toml"
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


def refusal(
    file: str | None = None,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
) -> str:
    with pytest.raises(IllegalConfig) as caught:
        config.load(file, environ or {}, flags or {})
    assert caught.value.code is Code.ILLEGAL_CONFIG
    return str(caught.value)


def from_flag(name: str, value: Any) -> Any:
    section, key = name.split(".")
    return getattr(getattr(config.load(None, {}, {name: value}), section), key)


# Sources and their precedence.


def test_without_any_source_every_option_has_its_default() -> None:
    assert config.load(None, {}, {}) == Config()


def test_the_defaults_are_the_documented_ones() -> None:
    defaults = Config()
    assert defaults.store.segment_bytes == GIB
    assert defaults.store.flush == "sync"
    assert defaults.store.message_bytes_max == 4 * MIB
    assert defaults.store.entry_bytes_max == 4 * MIB + 256 * KIB
    assert defaults.retention.hours == 72
    assert defaults.retention.refuse_writes_ratio == 0.90


def test_every_default_is_legal() -> None:
    flags = {option.name: option.default for option in config.options()}
    assert config.load(None, {}, flags) == Config()


def test_a_later_source_wins_over_an_earlier_one(write_file: WriteFile) -> None:
    file = write_file("[retention]\nhours = 1\n[node]\nid = 'f'\ncluster = 'f'\n")
    environ = {"MQ_NODE_ID": "e", "MQ_NODE_CLUSTER": "e"}
    loaded = config.load(file, environ, {"node.cluster": "g"})
    assert loaded.retention.hours == 1
    assert loaded.node.id == "e"
    assert loaded.node.cluster == "g"
    assert loaded.node.broker_set == Config().node.broker_set


def test_a_former_name_sets_the_option_unless_its_name_does(write_file: WriteFile) -> None:
    former, both = "[node]\nnode = 'f'\n", "[node]\nid = 'f'\nnode = 'g'\n"
    assert config.load(write_file(former), {}, {}).node.id == "f"
    assert config.load(write_file(both), {}, {}).node.id == "f"
    for environ in ({"MQ_NODE_NODE": "e"}, {"MQ_NODE_ID": "e", "MQ_NODE_NODE": "g"}):
        assert config.load(None, environ, {}).node.id == "e"


def test_a_flag_that_was_not_given_changes_nothing() -> None:
    loaded = config.load(None, {"MQ_NODE_ID": "e"}, {"node.id": None})
    assert loaded.node.id == "e"


def test_mq_config_names_the_file_unless_an_argument_does(
    write_file: WriteFile, tmp_path: Path
) -> None:
    file = write_file("[node]\nid = 'n'\n")
    assert config.load(None, {"MQ_CONFIG": file}, {}).node.id == "n"
    missing = str(tmp_path / "missing.toml")
    assert config.load(file, {"MQ_CONFIG": missing}, {}).node.id == "n"


def test_variables_of_other_programs_are_ignored() -> None:
    assert config.load(None, {"PATH": "/bin", "MQTT_HOST": "x", "mq_node": "x"}, {}) == Config()


# Units.


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("store.segment_bytes", "65536", 64 * KIB),
        ("store.segment_bytes", "65536B", 64 * KIB),
        ("store.segment_bytes", "64KiB", 64 * KIB),
        ("store.segment_bytes", " 2 gib ", 2 * GIB),
        ("store.segment_bytes", "1.5GiB", 3 * GIB // 2),
        ("store.segment_bytes", "1GB", 1_000_000_000),
        ("store.segment_bytes", GIB, GIB),
        ("store.message_bytes_max", "1MiB", MIB),
        ("retention.bytes", "1TiB", 1 << 40),
        ("retention.bytes", "0", 0),
        ("store.async_flush_ms", "250", 250),
        ("store.async_flush_ms", "250ms", 250),
        ("store.async_flush_ms", "0.25s", 250),
        ("retention.check_ms", "2m", 120_000),
        ("retention.check_ms", "1h", 3_600_000),
        ("retention.check_ms", "1d", 86_400_000),
        ("retention.clean_expired_ratio", "0.5", 0.5),
        ("retention.hours", "5", 5),
    ],
)
def test_sizes_and_durations_may_be_written_for_people(name: str, text: Any, value: Any) -> None:
    assert from_flag(name, text) == value


def test_human_units_are_read_from_all_three_sources(write_file: WriteFile) -> None:
    file = write_file('[store]\nsegment_bytes = "64MiB"\n')
    loaded = config.load(file, {"MQ_STORE_VERIFY_BYTES": "1GiB"}, {"retention.check_ms": "5s"})
    assert loaded.store.segment_bytes == 64 * MIB
    assert loaded.store.verify_bytes == GIB
    assert loaded.retention.check_ms == 5000


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("store.segment_bytes", "1Gi"),
        ("store.segment_bytes", "10s"),
        ("store.segment_bytes", "-1GiB"),
        ("store.segment_bytes", "64.0001KiB"),
        ("store.segment_bytes", "9" * 5000 + "KiB"),
        ("store.segment_bytes", "9" * 5000),
        ("store.async_flush_ms", "1KiB"),
        ("store.async_flush_ms", "0.5ms"),
        ("store.async_flush_ms", "ms"),
        ("retention.hours", "72h"),
    ],
)
def test_a_quantity_that_is_no_whole_number_of_its_unit_is_refused(name: str, text: str) -> None:
    assert "is not legal: use a" in refusal(flags={name: text})


# Illegal values: the text names the source, the value and what is legal.


def test_an_illegal_value_in_a_file_names_path_and_key(write_file: WriteFile) -> None:
    file = write_file("[store]\nsegment_bytes = 5\n")
    assert refusal(file) == (
        f"{file}: store.segment_bytes: 5 is not legal: "
        "use a size from 64KiB to 4080MiB, in bytes or like 64MiB"
    )


def test_an_illegal_value_in_a_variable_names_the_variable() -> None:
    assert refusal(environ={"MQ_STORE_FLUSH": "SYNC"}) == (
        "variable MQ_STORE_FLUSH: 'SYNC' is not legal: use one of sync, async"
    )


def test_an_illegal_value_of_a_flag_names_the_flag() -> None:
    assert refusal(flags={"store.async_flush_ms": "1h"}) == (
        "flag --store-async-flush-ms: '1h' is not legal: "
        "use a duration from 1ms to 10s, in milliseconds or like 10s"
    )


def test_a_flag_with_a_short_name_is_named_by_both() -> None:
    assert refusal(flags={"node.data": ""}).startswith("flag --data/--node-data: '' is not legal")


def test_an_illegal_value_is_refused_even_where_a_later_source_overrides_it(
    write_file: WriteFile,
) -> None:
    file = write_file("[store]\nflush = 'never'\n")
    assert refusal(file, flags={"store.flush": "sync"}).startswith(f"{file}: store.flush: 'never'")


@pytest.mark.parametrize(
    ("name", "value", "legal"),
    [
        ("store.segment_bytes", 64 * KIB - 1, "a size from 64KiB to 4080MiB"),
        ("store.segment_bytes", 4080 * MIB + 1, "a size from 64KiB to 4080MiB"),
        ("store.index_slots", 0, "a whole number from 1 to 100000000"),
        ("store.index_slots", 1.5, "a whole number"),
        ("store.index_slots", True, "a whole number"),
        ("store.index_slots", [1], "a whole number"),
        ("retention.bytes", -1, "a size from 0 to 1EiB"),
        ("retention.hours", 10**30, "a whole number from 1 to 876000"),
        ("retention.clean_expired_ratio", 0, "a number above 0 and up to 1"),
        ("retention.clean_expired_ratio", 1.01, "a number above 0 and up to 1"),
        ("retention.clean_expired_ratio", "nan", "a number above 0 and up to 1"),
        ("log.level", "verbose", "one of debug, info, warning, error"),
        ("log.format", "xml", "one of auto, console, json"),
        ("node.cluster", 3, "1 to 127 of letters, digits, _ and -"),
        ("node.cluster", "a/b", "1 to 127 of letters, digits, _ and -"),
        ("node.cluster", "a\n", "1 to 127 of letters, digits, _ and -"),
        ("node.cluster", "", "1 to 127 of letters, digits, _ and -"),
        ("node.cluster", "a" * 128, "1 to 127 of letters, digits, _ and -"),
        ("node.data", "a\nb", "a path, not empty, without control characters"),
        ("node.data", "a\udcffb", "a path, not empty, without control characters"),
    ],
)
def test_a_value_out_of_range_or_of_another_type_is_refused_with_what_is_legal(
    name: str, value: Any, legal: str
) -> None:
    assert f"is not legal: use {legal}" in refusal(flags={name: value})


def test_a_name_of_127_characters_is_legal() -> None:
    assert from_flag("node.cluster", "a" * 127) == "a" * 127


def test_a_long_illegal_value_is_shortened() -> None:
    assert len(refusal(flags={"log.level": "x" * 10_000})) < 250


@pytest.mark.parametrize(
    ("expired", "oldest", "refuse"), [(0.9, 0.85, 0.95), (0.5, 0.95, 0.9), (0.8, 0.8, 0.9)]
)
def test_ratios_that_do_not_rise_are_refused(expired: float, oldest: float, refuse: float) -> None:
    flags = {
        "retention.clean_expired_ratio": expired,
        "retention.clean_oldest_ratio": oldest,
        "retention.refuse_writes_ratio": refuse,
    }
    assert "must hold, but found are" in refusal(flags=flags)


def test_a_message_limit_that_does_not_fit_an_entry_is_refused() -> None:
    flags = {"store.message_bytes_max": "8MiB", "store.entry_bytes_max": "8MiB"}
    assert "store.message_bytes_max < store.entry_bytes_max must hold" in refusal(flags=flags)


def test_the_error_about_ratios_names_the_source_of_each(write_file: WriteFile) -> None:
    file = write_file("[retention]\nclean_expired_ratio = 0.95\n")
    environ = {"MQ_RETENTION_CLEAN_OLDEST_RATIO": "0.8"}
    text = refusal(file, environ)
    assert f"clean_expired_ratio = 0.95 ({file}: retention.clean_expired_ratio)" in text
    assert "clean_oldest_ratio = 0.8 (variable MQ_RETENTION_CLEAN_OLDEST_RATIO)" in text
    assert "refuse_writes_ratio = 0.9 (default)" in text


# Unknown names.


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[store]\nsegment_byte = 1\n", "unknown key store.segment_byte, did you mean"),
        ("[store]\nsegment_byte = 1\n", "did you mean store.segment_bytes? Legal: store."),
        ("[store]\nhours = 1\n", "unknown key store.hours, did you mean retention.hours?"),
        ("[store]\nzzz = 1\n", "unknown key store.zzz. Legal: store.segment_bytes, store.flush"),
        ("[stor]\nflush = 'sync'\n", "unknown section 'stor' at top level, did you mean store?"),
        (
            "[zzz]\n",
            "unknown section 'zzz' at top level. Legal: node, broker, auth, transactions, metrics,",
        ),
        ("hours = 1\n", "unknown key 'hours' at top level, did you mean retention.hours?"),
        ("store = 1\n", "store is 1: write it as a section, [store]"),
        ("[[store]]\nflush = 'sync'\n", "write it as a section, [store]"),
        ("[store.flush]\nx = 1\n", "store.flush: {'x': 1} is not legal: use one of sync, async"),
    ],
)
def test_an_unknown_key_in_a_file_names_the_file_and_a_near_one(
    write_file: WriteFile, text: str, expected: str
) -> None:
    file = write_file(text)
    found = refusal(file)
    assert found.startswith(f"{file}: ")
    assert expected in found


def test_an_unknown_variable_is_refused_with_a_near_one() -> None:
    text = refusal(environ={"MQ_STORE_SEGMENT_BYTE": "1"})
    assert text.startswith(
        "unknown variable MQ_STORE_SEGMENT_BYTE, did you mean MQ_STORE_SEGMENT_BYTES? Legal: "
    )
    assert refusal(environ={"MQ_ZZZ": "1"}).startswith("unknown variable MQ_ZZZ. Legal: MQ_CONFIG")


def test_the_variable_that_names_brokers_to_commands_is_no_option_of_a_node() -> None:
    assert config.load(None, {"MQ_SERVER": "127.0.0.1:8081"}, {}) == Config()


def test_the_variable_that_names_brokers_is_guessed_too() -> None:
    assert refusal(environ={"MQ_SERVERS": "x:1"}).startswith(
        "unknown variable MQ_SERVERS, did you mean MQ_SERVER?"
    )


# As Kubernetes writes them into every pod beside a Service called mq, and one called mq-broker.
KUBERNETES = {
    "MQ_SERVICE_HOST": "10.96.0.17",
    "MQ_SERVICE_PORT": "8081",
    "MQ_SERVICE_PORT_GRPC": "8081",
    "MQ_PORT": "tcp://10.96.0.17:8081",
    "MQ_PORT_8081_TCP": "tcp://10.96.0.17:8081",
    "MQ_PORT_8081_TCP_PROTO": "tcp",
    "MQ_PORT_8081_TCP_PORT": "8081",
    "MQ_PORT_8081_TCP_ADDR": "10.96.0.17",
    "MQ_BROKER_SERVICE_HOST": "fd00::17",
    "MQ_BROKER_SERVICE_PORT": "8081",
    "MQ_BROKER_PORT": "tcp://[fd00::17]:8081",
    "MQ_BROKER_PORT_53_UDP": "udp://[fd00::17]:53",
    "MQ_BROKER_PORT_53_UDP_ADDR": "fd00::17",
}


def test_variables_of_a_kubernetes_service_are_passed_over() -> None:
    assert config.load(None, KUBERNETES, {}) == Config()
    assert config.of_kubernetes({**KUBERNETES, "MQ_STORE_FLUSH": "sync", "PATH": "/bin"}) == sorted(
        KUBERNETES
    )


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("MQ_PORT", "8081"),
        ("MQ_SERVICE_HOST", "mq.example.org"),
        ("MQ_SERVICE_NAME", "10.96.0.17"),
        ("MQ_BROKR_PORT", "8081"),
        ("MQ_PORT_8081_TCP_ADDR", ""),
    ],
)
def test_a_variable_that_only_looks_like_one_of_kubernetes_is_refused(
    variable: str, value: str
) -> None:
    assert refusal(environ={variable: value}).startswith(f"unknown variable {variable}")


def test_an_option_whose_variable_kubernetes_also_writes_can_still_be_set() -> None:
    assert config.load(None, {"MQ_BROKER_PORT": "9000"}, {}).broker.port == 9000
    assert "is not legal" in refusal(environ={"MQ_BROKER_PORT": "tcp:8081"})


def test_an_unknown_flag_is_refused_with_a_near_one() -> None:
    text = refusal(flags={"store.flus": "sync"})
    assert text.startswith("unknown flag for store.flus, did you mean store.flush?")


# Files that cannot be read.


@pytest.mark.parametrize("named_by", ["--config", "MQ_CONFIG"])
def test_an_unreadable_file_is_named_with_its_source(tmp_path: Path, named_by: str) -> None:
    for path, reason in [
        (str(tmp_path / "missing.toml"), "No such file or directory"),
        (str(tmp_path), "Is a directory"),
        ("", "No such file or directory"),
    ]:
        text = refusal(path) if named_by == "--config" else refusal(None, {"MQ_CONFIG": path})
        assert text == f"{path!r}, named by {named_by}, cannot be read: {reason}; name a TOML file"


def test_a_syntax_error_names_file_line_and_column(write_file: WriteFile) -> None:
    file = write_file("[store]\nflush = \n")
    text = refusal(file)
    assert text.startswith(f"{file}, named by --config, is not legal TOML: ")
    assert "line 2, column 9" in text


def test_a_file_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mq.toml"
    path.write_bytes(b"[node]\ndata = '\xff'\n")
    assert "is not legal TOML" in refusal(str(path))


# The catalogue and the rendering.


def test_every_option_is_described_and_has_names_of_its_own() -> None:
    found = list(config.options())
    for option in found:
        assert option.description.endswith(".")
        assert option.legal
        assert option.metavar
        assert option.value_in(Config()) == option.default
    assert len({option.env for option in found}) == len(found)
    assert len({flag for option in found for flag in option.flags}) == len(found) + 3


def test_the_names_of_an_option_follow_from_section_and_key() -> None:
    option = next(each for each in config.options() if each.key == "segment_bytes")
    assert option.name == "store.segment_bytes"
    assert option.flag == "--store-segment-bytes"
    assert option.env == "MQ_STORE_SEGMENT_BYTES"
    assert option.text(option.default) == "1GiB"


def test_every_option_can_be_set_by_its_variable_and_by_its_flag() -> None:
    for option in config.options():
        text = str(option.default)
        assert config.load(None, {option.env: text}, {}) == Config()
        assert config.load(None, {}, {option.name: text}) == Config()


def test_the_rendering_of_the_defaults_loads_back(write_file: WriteFile) -> None:
    assert config.load(write_file(config.to_toml(Config())), {}, {}) == Config()


def test_the_rendering_describes_every_key() -> None:
    text = " ".join(re.sub(r"^# ", "", config.to_toml(Config()), flags=re.MULTILINE).split())
    for option in config.options():
        assert option.description in text
        assert f"Legal: {option.legal}. Default: {option.text(option.default)}." in text


def test_the_rendering_is_for_people_and_fits_a_hundred_columns() -> None:
    lines = config.to_toml(Config()).splitlines()
    assert 'segment_bytes = "1GiB"' in lines
    assert 'entry_bytes_max = "4352KiB"' in lines
    assert 'check_ms = "10s"' in lines
    assert "bytes = 0" in lines
    assert max(map(len, lines)) <= 100


_PATHS = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters=[*map(chr, range(32)), "\x7f"]),
    min_size=1,
)


@given(
    data=_PATHS,
    segment_bytes=st.integers(64 * KIB, 4080 * MIB),
    check_ms=st.integers(10, 86_400_000),
    retention_bytes=st.integers(0, 1 << 60),
    ratio=st.floats(0, 0.85, exclude_min=True, exclude_max=True),
)
def test_the_rendering_of_any_configuration_loads_back(
    tmp_path_factory: pytest.TempPathFactory,
    data: str,
    segment_bytes: int,
    check_ms: int,
    retention_bytes: int,
    ratio: float,
) -> None:
    flags = {
        "node.data": data,
        "store.segment_bytes": segment_bytes,
        "retention.check_ms": check_ms,
        "retention.bytes": retention_bytes,
        "retention.clean_expired_ratio": ratio,
    }
    wanted = config.load(None, {}, flags)
    assert wanted.node.data == data
    file = tmp_path_factory.mktemp("config") / "mq.toml"
    file.write_text(config.to_toml(wanted), encoding="utf-8")
    assert config.load(str(file), {}, {}) == wanted


def test_a_configuration_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Config().store.flush = "async"  # type: ignore[misc]


def test_a_configuration_has_no_fields_but_the_declared() -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"store": {"other": 1}}, Config)


@pytest.mark.parametrize("name", ["MQ_AUTH_BOOTSTRAP_ADMIN_FILE", "MQ_BOOTSTRAP_ADMIN_FILE"])
def test_the_file_of_the_first_administrator_has_two_variables(name: str) -> None:
    assert config.load(None, {name: "/run/admin"}, {}).auth.bootstrap_admin_file == "/run/admin"
