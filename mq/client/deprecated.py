"""Old names of parameters, which work with a DeprecationWarning."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])


def renamed(**names: str) -> Callable[[F], F]:
    """The method takes a parameter by its old name (the key), too."""

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def call(*args: Any, **given: Any) -> Any:
            for old in names.keys() & given.keys():
                new = names[old]
                if new in given:
                    raise TypeError(f"{function.__name__}: {old} is the old name of {new}")
                text = f"{function.__name__}: {old} is called {new} now"
                warnings.warn(text, DeprecationWarning, stacklevel=2)
                given[new] = given.pop(old)
            return function(*args, **given)

        return cast("F", call)

    return decorate
