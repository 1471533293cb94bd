"""Brokers: sets with their Raft state and restart plan; a node with its configuration and the
clients that are connected to it.
"""

from __future__ import annotations

from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mq.access.policies import Action, Kind
from mq.console import formats
from mq.console.callers import Caller
from mq.console.confirming import confirmation, require
from mq.console.gate import caller_of, form_of
from mq.console.pages import NavigationEntry, redirect, render
from mq.console.restart_plan import restart_plan
from mq.console.sampler import Node
from mq.errors import IllegalRequest, MqError, PermissionDenied, Unauthenticated
from mq.wire.v1.admin_pb2 import ConfigOption, ListClientsResponse

NAVIGATION = NavigationEntry("Brokers", "/brokers")

_CLIENTS = 50


async def show_all(request: Request) -> Response:
    caller = caller_of(request)
    sample = await caller.sampler.first()
    if sample.error is not None and not sample.sets:
        raise sample.error
    found = []
    for one in sample.sets:
        nodes = [node for node in sample.nodes if node.broker_set == one.name]
        leader = next((node.status for node in nodes if node.is_leader and node.status), None)
        behind = {each.node_id: each for each in leader.followers} if leader is not None else {}
        found.append(
            {
                "set": one,
                "nodes": nodes,
                "behind": behind,
                "leader": leader,
                "plan": restart_plan(nodes),
            }
        )
    return render(
        request,
        "brokers.html",
        title="Brokers",
        sample=sample,
        sets=found,
        may_transfer=await caller.may(Action.ALTER, Kind.CLUSTER, "members"),
    )


async def transfer(request: Request) -> Response:
    """The leadership of a set to the node that has most of the log, or to the one that is named."""
    caller, form = caller_of(request), form_of(request)
    broker_set, node_id = request.path_params["broker_set"], form.get("node")
    await require(caller, (Action.ALTER, Kind.CLUSTER, "members"))
    asked = confirmation(
        request,
        title=f"Move the leadership of {broker_set}",
        sentences=[
            f"{node_id or 'The node that has most of the log'} leads afterwards.",
            "Producers and consumers find it by themselves; sends pause for a moment.",
        ],
        button="Move it",
        back="/brokers",
        command=_transfer_command(broker_set, node_id),
    )
    if asked is not None:
        return asked
    await caller.admin.transfer_leadership(node_id, broker_set=broker_set)
    await caller.sampler.poll()
    return redirect("/brokers", "transferred")


def _transfer_command(broker_set: str, node_id: str) -> str:
    chosen = [node_id] if node_id else []
    return formats.command("cluster", "transfer-leader", *chosen, "--set", broker_set)


# -- one node --------------------------------------------------------------------------------------


async def show(request: Request) -> Response:
    caller = caller_of(request)
    node = await _node(caller, request)
    query = request.query_params
    wanted, only = query.get("q", "").strip().lower(), query.get("only", "")
    options, denied = await _options(caller, node)
    shown = [one for one in options if _is_shown(one, wanted, only)]
    return render(
        request,
        "broker.html",
        title=node.name,
        node=node,
        status=node.status,
        options=shown,
        option_count=len(options),
        config_error=denied,
        wanted=wanted,
        only=only if only in ("changed", "dynamic") else "",
        clients=await _clients(caller, node, query.get("at", "")),
        may_configure=await caller.may(Action.ALTER, Kind.CLUSTER, "config"),
    )


async def _node(caller: Caller, request: Request) -> Node:
    sample = await caller.sampler.first()
    broker_set, name = request.path_params["broker_set"], request.path_params["node"]
    for one in sample.nodes:
        if (one.broker_set, one.name) == (broker_set, name):
            return one
    raise IllegalRequest(f"there is no node {name} in broker set {broker_set}")


async def _options(caller: Caller, node: Node) -> tuple[list[ConfigOption], str]:
    """And why there are none."""
    if not node.route.address:
        return [], "its address is not known"
    try:
        return await caller.admin.get_config(node.route.address), ""
    except Unauthenticated:
        raise
    except MqError as error:
        return [], str(error)


def _is_shown(one: ConfigOption, wanted: str, only: str) -> bool:
    text = f"{one.name} {one.description}".lower()
    is_chosen = (only != "changed" or one.value != one.default) and (
        only != "dynamic" or one.is_dynamic
    )
    return is_chosen and all(word in text for word in wanted.split())


async def _clients(caller: Caller, node: Node, page: str) -> ListClientsResponse | None:
    """None: the node does not answer, or the caller may not see them."""
    if not node.route.address:
        return None
    try:
        return await caller.admin.list_clients(node.route.address, _CLIENTS, page=page)
    except (Unauthenticated, IllegalRequest):
        raise
    except (PermissionDenied, MqError):
        return None


async def configure(request: Request) -> Response:
    caller, form = caller_of(request), form_of(request)
    node = await _node(caller, request)
    name, value = form.get("name"), form.get("value")
    await require(caller, (Action.ALTER, Kind.CLUSTER, "config"))
    asked = confirmation(
        request,
        title=f"Set {name} on {node.name}",
        sentences=[f"{name} is {value} on this node from now on, until it stops."],
        button="Set it",
        back=_path(node),
        command=formats.command(
            "cluster", "set", name, value, "--node", node.name, "--set", node.broker_set
        ),
    )
    if asked is not None:
        return asked
    await caller.admin.set_config(name, value, node.route.address)
    return redirect(_path(node), "changed")


def _path(node: Node) -> str:
    return f"/brokers/{quote(node.broker_set, safe='')}/{quote(node.name, safe='')}"


ROUTES = [
    Route("/brokers", show_all),
    Route("/brokers/{broker_set}/transfer", transfer, methods=["POST"]),
    Route("/brokers/{broker_set}/{node}", show, methods=["GET"]),
    Route("/brokers/{broker_set}/{node}/config", configure, methods=["POST"]),
]
