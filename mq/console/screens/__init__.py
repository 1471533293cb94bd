"""The screens, and the one table of them.

To add one: a module here with `ROUTES` (and, for a line in the navigation, `NAVIGATION`), templates
`<screen>.html` that extend `base.html`, and the module in `SCREENS`. A view gets its user by
`caller_of(request)`, asks with `caller.admin`, `caller.pull` or `caller.producer`, and returns
`render(request, template, title=..., ...)`. Lists of topics, groups and nodes come from
`caller.sampler`, which has asked already. An MqError that a view raises becomes a page.
"""

from __future__ import annotations

from starlette.routing import BaseRoute

from mq.console import pages
from mq.console.screens import (
    brokers,
    dead_letters,
    groups,
    login,
    messages,
    overview,
    scheduled,
    security,
    send,
    topics,
    trace,
    transactions,
)

# In the order of the navigation.
SCREENS = (
    overview,
    topics,
    messages,
    groups,
    dead_letters,
    scheduled,
    transactions,
    trace,
    send,
    brokers,
    security,
    login,
)

pages.NAVIGATION[:] = [
    one.NAVIGATION for one in SCREENS if getattr(one, "NAVIGATION", None) is not None
]


def routes() -> list[BaseRoute]:
    return [route for screen in SCREENS for route in screen.ROUTES]
