"""Errors, in one line that names the option, topic or server and the remedy.

Spark wraps an exception of a Python data source into several of its own, with the traces of both
languages. `explain` gets our line out of them again. What Spark calls in this package is wrapped
into `as_our_own`: a trace of it would tell a user nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

from mq.errors import MqError

# Spark's own switch, which its workers look at when they report an exception.
_HIDE_TRACEBACK = "SPARK_HIDE_TRACEBACK"
_OURS = re.compile(r"\bMqSparkError: (?P<text>[^\n]*)")
_OF_THE_CLIENT = re.compile(r"\bmq\.errors\.(?P<text>\w+: [^\n]*)")
_OF_SPARK_CONNECT = re.compile(r'^\s*details = "(?P<text>[^\n]*)"$', re.MULTILINE)
_ERROR_CLASS = re.compile(r"^(?:\[[A-Z0-9_.]+\]\s*)+")
_SQL_STATE = re.compile(r"\s*SQLSTATE: \w+\s*$")


class MqSparkError(Exception):
    """The text is a single line."""

    def __init__(self, text: str) -> None:
        super().__init__(" ".join(text.split()))


def explain(error: BaseException) -> str:
    """One line: ours if the error has one, otherwise the first that Spark says."""
    if isinstance(error, (MqSparkError, MqError)):
        return str(error)
    whole = str(error)
    for pattern in (_OURS, _OF_THE_CLIENT, _OF_SPARK_CONNECT):
        found = pattern.search(whole)
        if found:
            return found["text"].strip()
    lines = [line.strip() for line in whole.splitlines() if line.strip()]
    first = lines[0] if lines else type(error).__name__
    return _SQL_STATE.sub("", _ERROR_CLASS.sub("", first))


@contextmanager
def as_our_own(doing: str = "") -> Iterator[None]:
    """Errors of the client become ours, and are reported without a trace. For what a Python process
    of Spark calls, which ends by the error: others that come later keep their traces.
    """
    try:
        yield
    except MqSparkError as error:
        os.environ[_HIDE_TRACEBACK] = "1"
        raise error.with_traceback(None) from None
    except MqError as error:
        os.environ[_HIDE_TRACEBACK] = "1"
        raise MqSparkError(f"{doing}: {error}" if doing else str(error)) from None
