"""Dead letters: by group, by reason, one by one; sent again or purged, with a result for each."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mq.access.policies import Action, Kind
from mq.client.decode import decompressed
from mq.console import formats
from mq.console.callers import Caller
from mq.console.confirming import confirmation, require
from mq.console.gate import caller_of, form_of
from mq.console.pages import NavigationEntry, paged, redirect, render
from mq.errors import IllegalRequest, MqError, TopicNotFound, Unauthenticated
from mq.wire.v1 import admin_pb2 as pb

NAVIGATION = NavigationEntry("Dead letters", "/dead-letters")

# Letters that are looked at for one page: what the reasons are counted of.
LOOKED_MAX = 1_000
_PAGE = 50
_CHOSEN_MAX = 1_000
_ACTIONS = ("resend", "purge")


@dataclass(frozen=True, slots=True)
class Letter:
    stored: pb.StoredMessage
    is_resent: bool

    @property
    def broker_set(self) -> str:
        return self.stored.message_id.rpartition(":")[0]

    @property
    def place(self) -> str:
        """As a form names it."""
        return f"{self.broker_set}/{self.stored.queue_offset}"

    @property
    def reason(self) -> str:
        return self.stored.message.origin.reason or "no reason given"


@dataclass(frozen=True, slots=True)
class Looked:
    """`next_at` is where to go on; empty: these are all."""

    letters: list[Letter]
    next_at: str


async def show_all(request: Request) -> Response:
    caller = caller_of(request)
    counts = await caller.admin.count_dead_letters()
    wanted = request.query_params.get("q", "").strip().lower()
    found = [one for one in counts if all(word in one.group.lower() for word in wanted.split())]
    found.sort(key=lambda one: (-one.messages, one.group))
    return render(
        request,
        "dead_letters.html",
        title="Dead letters",
        part=paged(request, found),
        total=sum(one.messages for one in found),
        wanted=wanted,
        missing_sets=counts.missing_sets,
    )


async def show(request: Request) -> Response:
    caller, group = caller_of(request), request.path_params["group"]
    query = request.query_params
    reason, topic = query.get("reason", ""), query.get("topic", "")
    looked = await _look(caller, group, query.get("at", ""))
    chosen = [
        one
        for one in looked.letters
        if reason in ("", one.reason) and topic in ("", one.stored.message.origin.topic)
    ]
    return render(
        request,
        "dead_letters_of.html",
        title=f"Dead letters of {group}",
        group=group,
        looked=looked,
        reasons=Counter(one.reason for one in looked.letters).most_common(20),
        topics=Counter(one.stored.message.origin.topic for one in looked.letters).most_common(20),
        reason=reason,
        topic=topic,
        part=paged(request, chosen, _PAGE),
        preview=_preview,
        has_sets=len({one.broker_set for one in looked.letters}) > 1,
        may_settle=await _may_settle(caller, group),
    )


async def _look(caller: Caller, group: str, at: str) -> Looked:
    """Up to `LOOKED_MAX` letters from there on. TopicNotFound: it never had one."""
    place: int | dict[str, int] = _parse_place(at) if at else 0
    letters: list[Letter] = []
    while True:
        answer = await caller.admin.list_dead_letters(group, place, LOOKED_MAX - len(letters))
        resent = set(answer.resent_ids)
        letters += [Letter(one, one.message_id in resent) for one in answer.messages]
        place = dict(answer.next_offsets)
        if not answer.messages:
            return Looked(letters, "")
        if len(letters) >= LOOKED_MAX:
            return Looked(letters, json.dumps(place, separators=(",", ":")))


def _parse_place(at: str) -> dict[str, int]:
    try:
        place = json.loads(at[:4096])
    except ValueError:
        place = None
    if not isinstance(place, dict) or not all(
        isinstance(one, int) and not isinstance(one, bool) and 0 <= one < 1 << 63
        for one in place.values()
    ):
        raise IllegalRequest("at is no place of this list: follow the link of the page before")
    return place


def _preview(letter: Letter) -> str:
    """Of the body as it was sent; what cannot be decompressed is shown as it stands."""
    found = letter.stored.message
    unpacked = decompressed(found.body, found.compression)
    return formats.preview(unpacked if isinstance(unpacked, bytes) else found.body)


async def _may_settle(caller: Caller, group: str) -> bool:
    return await caller.may(Action.CONSUME, Kind.GROUP, group) and await caller.may(
        Action.ALTER, Kind.GROUP, group
    )


# -- changes ---------------------------------------------------------------------------------------


async def settle(request: Request) -> Response:
    """Of chosen letters; the answer is a page with what became of each."""
    caller, group, form = caller_of(request), request.path_params["group"], form_of(request)
    await require(caller, (Action.CONSUME, Kind.GROUP, group), (Action.ALTER, Kind.GROUP, group))
    action, again = form.get("action"), form.get("again") == "yes"
    places = _chosen(form.all("letter"))
    if action not in _ACTIONS:
        raise IllegalRequest(f"action {action[:50]!r}: use resend or purge")
    count = sum(map(len, places.values()))
    lines = [_command(group, action, name, places, again=again) for name in places]
    if action == "purge":
        asked = confirmation(
            request,
            title=f"Purge {count:,} dead letter{'s' * (count != 1)} of {group}",
            sentences=["They are gone for good: nobody can resend or read them afterwards."],
            button=f"Purge {count:,}",
            back=_path(group),
            command=lines[0] if len(lines) == 1 else "",
        )
        if asked is not None:
            return asked
    results = []
    for name, offsets in places.items():
        results += await _settle_in(caller, group, name, offsets, action, again=again)
    return render(
        request,
        "settled.html",
        title="Result",
        group=group,
        action=action,
        results=results,
        counts=Counter(word for _, _, word, _ in results),
        levels=_LEVELS,
        lines=lines,
        retriable=[f"{name}/{at}" for name, at, word, _ in results if word == "already resent"],
    )


_LEVELS = {"resent": "good", "purged": "good", "already resent": "warn", "gone": "warn"}


async def _settle_in(
    caller: Caller, group: str, broker_set: str, offsets: list[int], action: str, *, again: bool
) -> list[tuple[str, int, str, str]]:
    """The outcome of each letter; a set that does not answer refuses its own."""
    try:
        outcomes = await caller.admin.settle_dead_letters(
            group,
            offsets,
            action,  # type: ignore[arg-type] # checked
            again=again,
            broker_set=broker_set,
        )
    except Unauthenticated:
        raise
    except MqError as error:
        return [(broker_set, at, "refused", str(error)) for at in offsets]
    return [
        (broker_set, one.queue_offset, result_name(one.result), one.text or one.message_id)
        for one in outcomes
    ]


def result_name(number: int) -> str:
    name: str = pb.LetterResult.Name(number)
    return name.removeprefix("LETTER_RESULT_").lower().replace("_", " ")


def _chosen(letters: list[str]) -> dict[str, list[int]]:
    """Offsets by set."""
    found: dict[str, list[int]] = {}
    for one in letters:
        name, _, at = one.rpartition("/")
        if not name or not at.isdecimal() or len(at) > 18:
            raise IllegalRequest(f"{one[:50]!r} is no dead letter")
        found.setdefault(name, []).append(int(at))
    if not found:
        raise IllegalRequest("nothing was chosen: mark the dead letters first")
    if len(letters) > _CHOSEN_MAX:
        raise IllegalRequest(f"{len(letters):,} dead letters at once: at most {_CHOSEN_MAX:,}")
    return found


def _command(
    group: str, action: str, broker_set: str, places: Mapping[str, list[int]], *, again: bool
) -> str:
    chosen = ["--set", broker_set] if len(places) > 1 else []
    more = ["--again"] if again and action == "resend" else []
    return formats.command("dlq", action, group, *places[broker_set], *chosen, *more)


async def settle_all(request: Request) -> Response:
    caller, group, form = caller_of(request), request.path_params["group"], form_of(request)
    await require(caller, (Action.CONSUME, Kind.GROUP, group), (Action.ALTER, Kind.GROUP, group))
    action = form.get("action")
    if action not in _ACTIONS:
        raise IllegalRequest(f"action {action[:50]!r}: use resend or purge")
    counts = await caller.admin.count_dead_letters()
    count = next((one.messages for one in counts if one.group == group), 0)
    is_resend = action == "resend"
    asked = confirmation(
        request,
        title=f"{action.capitalize()} all {count:,} dead letters of {group}",
        sentences=[
            "They come to the group as retries, counted from 0, and leave this list. Those that "
            "were resent one by one come once more."
            if is_resend
            else "They are gone for good: nobody can resend or read them afterwards."
        ],
        button=f"{action.capitalize()} all",
        back=_path(group),
        command=formats.command("dlq", action, group, *(["--all"] if is_resend else [])),
        word=group,
    )
    if asked is not None:
        return asked
    try:
        if is_resend:
            await caller.admin.resend_dead_letters(group)
        else:
            await caller.admin.purge_dead_letters(group)
    except TopicNotFound as error:
        raise IllegalRequest(str(error)) from None
    return redirect("/dead-letters", "changed")


def _path(group: str) -> str:
    return f"/dead-letters/{quote(group, safe='')}"


ROUTES = [
    Route("/dead-letters", show_all),
    Route("/dead-letters/{group}", show),
    Route("/dead-letters/{group}/settle", settle, methods=["POST"]),
    Route("/dead-letters/{group}/all", settle_all, methods=["POST"]),
]
