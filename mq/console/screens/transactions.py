"""Open transactions: half messages that wait for the word of their producer."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mq.access.policies import Action, Kind
from mq.console import formats
from mq.console.confirming import confirmation, require
from mq.console.gate import caller_of, form_of
from mq.console.pages import NavigationEntry, paged, redirect, render
from mq.errors import IllegalRequest

NAVIGATION = NavigationEntry("Transactions", "/transactions")

_LISTED = 1_000
_ACTIONS = ("check", "commit", "rollback")


async def show(request: Request) -> Response:
    caller = caller_of(request)
    group = request.query_params.get("group", "").strip()
    listed = await caller.admin.list_transactions(group, _LISTED)
    part = paged(request, list(listed.transactions))
    topics = {one.topic for one in part.items}
    return render(
        request,
        "transactions.html",
        title="Transactions",
        listed=listed,
        part=part,
        group=group,
        may_check={one for one in topics if await caller.may(Action.ALTER, Kind.TOPIC, one)},
        may_end={one for one in topics if await caller.may(Action.PUBLISH, Kind.TOPIC, one)},
        words=["transaction", "list", *(["--group", group] if group else [])],
    )


async def end(request: Request) -> Response:
    """Asks the producer, or does what it would have done."""
    caller, form = caller_of(request), form_of(request)
    action, transaction_id = form.get("action"), form.get("transaction_id")
    topic = form.get("topic")
    if action not in _ACTIONS:
        raise IllegalRequest(f"action {action[:50]!r}: use {', '.join(_ACTIONS)}")
    if action == "check":
        await require(caller, (Action.ALTER, Kind.TOPIC, topic))
        await caller.admin.check_transaction(transaction_id)
        return redirect("/transactions", "asked")
    await require(caller, (Action.PUBLISH, Kind.TOPIC, topic))
    is_commit = action == "commit"
    asked = confirmation(
        request,
        title=f"{'Commit' if is_commit else 'Roll back'} {transaction_id}",
        sentences=[
            f"Its messages are on topic {topic} at once, whatever its producer says later."
            if is_commit
            else f"Nobody will ever see its messages for topic {topic}.",
            "Do this only if you know what became of the work that the transaction belongs to.",
        ],
        button="Commit" if is_commit else "Roll back",
        back="/transactions",
        command=formats.command("transaction", action, transaction_id),
    )
    if asked is not None:
        return asked
    await caller.admin.end_transaction(transaction_id, commit=is_commit)
    return redirect("/transactions", "committed" if is_commit else "rolled-back")


ROUTES = [
    Route("/transactions", show),
    Route("/transactions/end", end, methods=["POST"]),
]
