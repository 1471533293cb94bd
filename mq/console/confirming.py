"""Actions that cannot be undone: a page that says what will happen, and a form that does it.

    asked = confirmation(request, title=..., sentences=[...], button="Purge", back=...)
    if asked is not None:
        return asked

The first POST shows the page, with its fields in the form again; the second one has `confirmed`.
Rights are asked for before, so that a caller who may not never gets to see it.
"""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from mq.access.policies import Action, Kind, Resource
from mq.console.callers import Caller
from mq.console.gate import TOKEN_FIELD, form_of
from mq.console.pages import render
from mq.errors import PermissionDenied

_CONFIRMED = "confirmed"


async def require(caller: Caller, *needs: tuple[Action, Kind, str]) -> None:
    """PermissionDenied. The brokers decide again when it is done."""
    for action, kind, name in needs:
        if not await caller.may(action, kind, name):
            raise PermissionDenied(f"you may not {action} {Resource(kind, name)}")


def confirmation(
    request: Request,
    *,
    title: str,
    sentences: Sequence[str],
    button: str,
    back: str,
    command: str = "",
    word: str = "",
) -> Response | None:
    """None: it is confirmed. `word`: has to be typed."""
    form = form_of(request)
    given = form.get(_CONFIRMED)
    if given and given == (word or "yes"):
        return None
    return render(
        request,
        "confirm.html",
        400 if given else 200,
        title=title,
        sentences=sentences,
        button=button,
        back=back,
        shell=command,
        word=word,
        is_wrong=bool(given),
        fields=[one for one in form.items() if one[0] not in (_CONFIRMED, TOKEN_FIELD)],
    )
