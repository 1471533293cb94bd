"""Security: users, keys, policies, quotas and namespaces; who may do what, and why; the audit
trail.

What is shown is what the brokers show this user: a superuser all of it, others themselves. Changes
are for superusers, but for keys of one's own.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mq.access.policies import Action, Kind, Resource
from mq.access.views import AccessView
from mq.console import audit_trail, formats
from mq.console.callers import SUPERUSER, Caller
from mq.console.confirming import confirmation
from mq.console.gate import Form, caller_of, form_of
from mq.console.pages import NavigationEntry, paged, redirect, render
from mq.errors import IllegalRequest, PermissionDenied
from mq.wire.v1.security_pb2 import CredentialType, Quota

NAVIGATION = NavigationEntry("Security", "/security")

TABS = ("users", "roles", "keys", "policies", "quotas", "namespaces", "check", "audit")
LIMITS = tuple(one.name for one in Quota.DESCRIPTOR.fields if one.name != "subject")
_DAY_MS = 86_400_000
_ASKED = ("user", "action", "kind", "name", "from")


def is_superuser(caller: Caller) -> bool:
    """Without a login nobody is: brokers want to know who changes users, in every mode."""
    return caller.session is not None and SUPERUSER in caller.session.roles


async def show(request: Request) -> Response:
    tab = request.path_params.get("tab", "users")
    if tab not in TABS:
        raise IllegalRequest(f"there is no page {tab[:50]!r}: use {', '.join(TABS)}")
    caller = caller_of(request)
    if tab == "audit":
        return await _show_audit(request, caller)
    if tab == "check":
        return await _show_check(request, caller)
    view = await caller.admin.describe_access()
    wanted = request.query_params.get("q", "").strip().lower()
    rows = [one for one in _rows(tab, view) if _has(one, wanted)]
    return render(
        request,
        f"security_{tab}.html",
        title=tab.capitalize(),
        tab=tab,
        tabs=TABS,
        view=view,
        state=view.state,
        part=paged(request, rows),
        wanted=wanted,
        may_change=is_superuser(caller),
        own=caller.user,
        limits=LIMITS,
        type_name=lambda number: CredentialType.Name(number).lower().replace("_", " "),
    )


def _rows(tab: str, view: AccessView) -> list[Any]:
    state = view.state
    if tab == "users":
        return list(state.users)
    if tab == "keys":
        return list(state.credentials)
    if tab == "policies":
        return list(state.policies)
    if tab == "quotas":
        return list(state.quotas)
    if tab == "namespaces":
        return [
            (one, [user.name for user in state.users if one.name in user.namespaces])
            for one in state.namespaces
        ]
    subjects = {one.subject.partition(":")[2] for one in state.policies if "role:" in one.subject}
    roles = {SUPERUSER, *subjects, *(role for user in state.users for role in user.roles)}
    return [
        (
            role,
            [user.name for user in state.users if role in user.roles],
            [one.line for one in state.policies if one.subject == f"role:{role}"],
        )
        for role in sorted(roles)
    ]


def _has(row: Any, wanted: str) -> bool:
    text = str(row).lower()
    return all(word in text for word in wanted.split())


# -- may U do X on Y -------------------------------------------------------------------------------


async def _show_check(request: Request, caller: Caller) -> Response:
    query = request.query_params
    asked = {name: query.get(name, "").strip() for name in _ASKED}
    answers = None
    command = "mq policy check USER publish topic:NAME"
    if asked["user"] or asked["name"]:
        if asked["action"] not in tuple(Action) or asked["kind"] not in tuple(Kind):
            raise IllegalRequest("say which action, and on what")
        resource = Resource(Kind(asked["kind"]), asked["name"])
        answers = await caller.admin.check_access(
            asked["user"], Action(asked["action"]), resource, address=asked["from"]
        )
        more = ["--from", asked["from"]] if asked["from"] else []
        command = formats.command(
            "policy", "check", asked["user"], asked["action"], resource.subject, *more
        )
    return render(
        request,
        "security_check.html",
        title="Check",
        tab="check",
        tabs=TABS,
        asked=asked,
        answers=answers,
        actions=list(Action),
        kinds=list(Kind),
        line=command,
    )


async def _show_audit(request: Request, caller: Caller) -> Response:
    query = request.query_params
    wanted = audit_trail.Wanted(
        query.get("user", "").strip(), query.get("about", "").strip(), query.get("what", "").strip()
    )
    page = await audit_trail.read_page(caller.admin, wanted, query.get("at", ""))
    words = [
        word
        for flag, value in (
            ("--user", wanted.user),
            ("--about", wanted.about),
            ("--what", wanted.what),
        )
        if value
        for word in (flag, value)
    ]
    return render(
        request,
        "security_audit.html",
        title="Audit trail",
        tab="audit",
        tabs=TABS,
        wanted=wanted,
        page=page,
        has_sets=len({one.broker_set for one in page.records}) > 1,
        words=["audit", "--since", "7d", *words],
    )


# -- changes ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Change:
    """One change, from a form. With sentences it has to be confirmed."""

    tab: str
    command: str
    run: Callable[[], Awaitable[Any]]
    title: str = ""
    sentences: tuple[str, ...] = ()
    # Whose own affair it may be.
    owner: str = ""


def _words(text: str) -> list[str]:
    return text.replace(",", " ").split()


def _subject(form: Form) -> tuple[str, list[str]]:
    """Of a policy, and the flags of a command."""
    kind, name = form.get("subject_kind"), form.get("subject").strip()
    if kind not in ("user", "role") or not name:
        raise IllegalRequest("say whose: a user or a role, and its name")
    return f"{kind}:{name}", [f"--{kind}", name]


def _create_user(form: Form, caller: Caller) -> Change:
    name, roles = form.get("user").strip(), _words(form.get("roles"))
    namespaces, password = _words(form.get("namespaces")), form.get("password")
    flags = [word for one in roles for word in ("--role", one)]
    flags += [word for one in namespaces for word in ("--namespace", one)]
    return Change(
        "users",
        formats.command("user", "create", name, *flags, *(["--password"] if password else [])),
        lambda: caller.admin.create_user(
            name, roles=roles, namespaces=namespaces, password=password or None
        ),
    )


def _set_roles(form: Form, caller: Caller) -> Change:
    name, roles = form.get("user"), _words(form.get("roles"))
    flags = [word for one in roles for word in ("--role", one)] or ["--no-roles"]
    is_super = SUPERUSER in roles
    return Change(
        "users",
        formats.command("user", "alter", name, *flags),
        lambda: caller.admin.alter_user(name, roles=roles),
        f"Roles of {name}",
        (
            f"{name} has {', '.join(roles) if roles else 'no roles'} from now on, in all sets.",
            *(("A superuser may do everything.",) if is_super else ()),
        ),
    )


def _disable_user(form: Form, caller: Caller) -> Change:
    name, is_disabled = form.get("user"), form.get("disabled") == "yes"
    word = "disable" if is_disabled else "enable"
    return Change(
        "users",
        formats.command("user", word, name),
        lambda: caller.admin.alter_user(name, is_disabled=is_disabled),
        f"{word.capitalize()} user {name}",
        (
            "Its keys are refused at once, and its streams end."
            if is_disabled
            else "Its keys are taken again.",
        ),
    )


def _delete_user(form: Form, caller: Caller) -> Change:
    name = form.get("user")
    return Change(
        "users",
        formats.command("user", "delete", name),
        lambda: caller.admin.delete_user(name),
        f"Delete user {name}",
        ("Its keys, password, policies and quota go with it; its streams end at once.",),
    )


def _revoke_key(form: Form, caller: Caller) -> Change:
    key_id, user = form.get("key"), form.get("user")
    return Change(
        "keys",
        formats.command("key", "revoke", key_id),
        lambda: caller.admin.revoke_key(key_id),
        f"Revoke key {key_id}",
        (f"It is a key of {user}. What uses it ends within a moment, and cannot come back.",),
        user,
    )


def _add_policy(form: Form, caller: Caller) -> Change:
    subject, flags = _subject(form)
    line = " ".join(form.get("line").split())
    return Change(
        "policies",
        formats.command("policy", "add", *flags, line),
        lambda: caller.admin.add_policy(subject, line),
    )


def _remove_policy(form: Form, caller: Caller) -> Change:
    subject, line = form.get("of"), form.get("line")
    kind, _, name = subject.partition(":")
    return Change(
        "policies",
        formats.command("policy", "remove", f"--{kind}", name, line),
        lambda: caller.admin.remove_policy(subject, line),
        "Remove a policy",
        (f"{subject} has no longer: {line}", "Streams that need it end at once."),
    )


def _set_quota(form: Form, caller: Caller) -> Change:
    subject, limit = form.get("subject").strip(), form.get("limit")
    value = form.get("value").strip()
    if limit not in LIMITS:
        raise IllegalRequest(f"limit {limit[:50]!r}: use one of {', '.join(LIMITS)}")
    if not (value.isascii() and value.isdecimal() and len(value) <= 18):
        raise IllegalRequest(f"{value[:50]!r} is no limit: use a number; 0 removes it")
    flag = "--" + limit.removesuffix("_per_s").replace("_", "-")
    per_s = "/s" if limit.endswith("_per_s") else ""
    return Change(
        "quotas",
        formats.command("quota", "set", subject, flag, f"{value}{per_s}"),
        lambda: caller.admin.alter_quota(subject, {limit: int(value)}),
    )


def _remove_quota(form: Form, caller: Caller) -> Change:
    subject = form.get("subject")
    return Change(
        "quotas",
        formats.command("quota", "remove", subject),
        lambda: caller.admin.remove_quota(subject),
        f"Remove the quota of {subject}",
        ("Nothing limits it from now on, unless there is a default.",),
    )


def _create_namespace(form: Form, caller: Caller) -> Change:
    name = form.get("namespace").strip()
    return Change(
        "namespaces",
        formats.command("namespace", "create", name),
        lambda: caller.admin.create_namespace(name),
    )


def _delete_namespace(form: Form, caller: Caller) -> Change:
    name = form.get("namespace")
    return Change(
        "namespaces",
        formats.command("namespace", "delete", name),
        lambda: caller.admin.delete_namespace(name),
        f"Delete namespace {name}",
        ("Its topics and groups stay, under their full names; its quota goes with it.",),
    )


_CHANGES: dict[str, Callable[[Form, Caller], Change]] = {
    "create-user": _create_user,
    "set-roles": _set_roles,
    "disable-user": _disable_user,
    "delete-user": _delete_user,
    "revoke-key": _revoke_key,
    "add-policy": _add_policy,
    "remove-policy": _remove_policy,
    "set-quota": _set_quota,
    "remove-quota": _remove_quota,
    "create-namespace": _create_namespace,
    "delete-namespace": _delete_namespace,
}


async def change(request: Request) -> Response:
    caller, form = caller_of(request), form_of(request)
    make = _CHANGES.get(request.path_params["change"])
    if make is None:
        raise IllegalRequest(f"there is no change {request.path_params['change'][:50]!r}")
    made = make(form, caller)
    if not is_superuser(caller) and (not made.owner or made.owner != caller.user):
        raise PermissionDenied("users, policies, quotas and namespaces are for superusers")
    back = f"/security/{made.tab}"
    if made.sentences:
        asked = confirmation(
            request,
            title=made.title,
            sentences=made.sentences,
            button=made.title.partition(" ")[0] if made.tab != "users" else "Do it",
            back=back,
            command=made.command,
        )
        if asked is not None:
            return asked
    await made.run()
    return redirect(back, "changed")


async def create_key(request: Request) -> Response:
    """The page shows the secret, once."""
    caller, form = caller_of(request), form_of(request)
    user, days = form.get("user").strip(), form.get("days").strip()
    if not is_superuser(caller) and user != caller.user:
        raise PermissionDenied("keys of others are for superusers")
    if days and not (days.isascii() and days.isdecimal() and 0 < int(days[:6]) <= 36_500):
        raise IllegalRequest(f"{days[:50]!r} days: use a number from 1 to 36,500, or none")
    expires_at_ms = time.time_ns() // 1_000_000 + int(days) * _DAY_MS if days else 0
    key = await caller.admin.create_key(user, expires_at_ms=expires_at_ms)
    return render(
        request,
        "security_key.html",
        title="New key",
        tab="keys",
        tabs=TABS,
        key_user=user,
        key=key,
        expires_at_ms=expires_at_ms,
        line=formats.command("key", "create", user, *(["--expires", f"{days}d"] if days else [])),
    )


ROUTES = [
    Route("/security", show),
    Route("/security/new-key", create_key, methods=["POST"]),
    Route("/security/{tab}", show, methods=["GET"]),
    Route("/security/{change}", change, methods=["POST"]),
]
