"""The signatures of public methods: constructors that take the fields of an options object, and old
names of parameters, which work with a DeprecationWarning.
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])
S = TypeVar("S")
OptionsT = TypeVar("OptionsT")
P = ParamSpec("P")


def arguments_of(
    options: Callable[P, OptionsT],
) -> Callable[[Callable[[S, OptionsT], None]], Callable[Concatenate[S, P], None]]:
    """The constructor takes the arguments of an options class, with their types and defaults, and
    its body is given the options. `help`, editors and type checkers see them one by one.
    """

    def decorate(body: Callable[[S, OptionsT], None]) -> Callable[Concatenate[S, P], None]:
        def construct(self: S, /, *args: P.args, **kwargs: P.kwargs) -> None:
            body(self, options(*args, **kwargs))

        functools.update_wrapper(construct, body)
        itself = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
        taken = inspect.signature(options)
        seen = taken.replace(parameters=[itself, *taken.parameters.values()])
        vars(construct)["__signature__"] = seen
        return construct

    return decorate


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
