"""SecurityService: decodes, calls `mq.broker.security`, encodes. What proves a credential stays,
unless a superuser copies it to another broker set.

Its own rules hold also while the gate only observes: a user that a stranger makes today would be
let in tomorrow.
"""

from __future__ import annotations

import ipaddress

from mq.access.policies import Action, Kind, Resource
from mq.broker.broker import Broker
from mq.broker.security.audit import Record
from mq.broker.security.changes import ChangeRequest, is_own
from mq.broker.security.gate import Principal
from mq.broker.state.access import SUPERUSER
from mq.errors import IllegalRequest, PermissionDenied, UserNotFound
from mq.names import namespace_of
from mq.rpc.context import Context
from mq.rpc.methods import peer_address
from mq.wire.v1 import security_pb2 as pb

_AREA = "access"


class SecurityService:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._access = broker.state.access
        self._gate = broker.gate

    async def login(self, request: pb.LoginRequest, context: Context) -> pb.LoginResponse:
        expires_at_ms = await self._broker.logins.login(
            request.user,
            request.password,
            request.key_id,
            request.key_digest,
            peer_address(context.peer()),
        )
        return pb.LoginResponse(expires_at_ms=expires_at_ms)

    async def who_am_i(self, request: pb.WhoAmIRequest, context: Context) -> pb.WhoAmIResponse:
        caller = context.caller
        return pb.WhoAmIResponse(
            user=caller.user,
            roles=caller.roles,
            namespaces=caller.namespaces,
            credential=caller.credential,
            expires_at_ms=caller.expires_at_ms,
            auth_mode=self._gate.mode,
            address=peer_address(context.peer()),
        )

    async def change_access(
        self, request: pb.ChangeAccessRequest, context: Context
    ) -> pb.ChangeAccessResponse:
        caller = context.caller
        if self._gate.is_off:
            raise PermissionDenied(
                "users and policies are changed by superusers, and auth.mode is off: start the "
                "brokers with auth.mode = observe, which refuses nothing else"
            )
        if not is_own(request.changes, caller.user, self._access):
            self._gate.check_superuser(caller, _AREA, always=True)
        # Decided once more when its turn comes: the state may be another one then.
        own_user = caller.user if self._is_limited(caller) else None
        version, digest = await self._broker.access_changes.change(
            ChangeRequest(request.changes, caller, own_user, request.expected_version)
        )
        return pb.ChangeAccessResponse(version=version, digest=digest)

    async def describe_access(
        self, request: pb.DescribeAccessRequest, context: Context
    ) -> pb.DescribeAccessResponse:
        """Superusers see all; others themselves, and the policies of their roles."""
        if request.with_proofs:
            await self._check_proofs(context)
        state = pb.AccessState()
        state.CopyFrom(self._access.encode())
        for credential in state.credentials:
            if request.with_proofs:
                credential.is_sealed = credential.type == pb.HMAC_SHA1
            else:
                credential.ClearField("proof")
        if self._is_limited(context.caller):
            state = _seen_by(context.caller, state)
            return pb.DescribeAccessResponse(state=state)
        return pb.DescribeAccessResponse(
            state=state,
            digest=self._access.digest(),
            others=self._broker.directory.accesses(),
        )

    async def check_access(
        self, request: pb.CheckAccessRequest, context: Context
    ) -> pb.CheckAccessResponse:
        """Of another user, for superusers."""
        caller = context.caller
        if request.user != caller.user:
            self._gate.check_superuser(caller, _AREA, always=True)
        user = self._access.user(request.user)
        if user is None:
            raise UserNotFound(f"there is no user {request.user[:200]!r}")
        action, resource = _question(request)
        namespaces = tuple(user.namespaces)
        home = namespace_of(resource.name)
        asked = Principal(
            user.name,
            tuple(user.roles),
            namespaces,
            # From inside of one of its namespaces: of the right one, if it has that.
            namespace=home if home in namespaces else namespaces[0] if namespaces else "",
            address=request.address,
            is_superuser=SUPERUSER in user.roles,
        )
        ruling = self._gate.ruling(asked, action, resource)
        is_allowed = ruling.is_allowed and not user.is_disabled
        response = pb.CheckAccessResponse(is_allowed=is_allowed, is_superuser=asked.is_superuser)
        if ruling.policy is not None:
            response.policy.subject, response.policy.line = ruling.subject, str(ruling.policy)
        return response

    async def _check_proofs(self, context: Context) -> None:
        """Whether the caller may see what proves credentials, which is recorded then. Superusers
        can read it in the log, too.
        """
        caller = context.caller
        if self._gate.is_off:
            raise PermissionDenied("what proves credentials is for superusers: auth.mode is off")
        self._gate.check_superuser(caller, _AREA, always=True)
        subject = Resource(Kind.CLUSTER, _AREA).subject
        if not context.is_encrypted() and not _is_loopback(caller.address):
            reason = (
                "what proves credentials does not cross a network in plaintext: connect with TLS "
                "(broker.tls), or from the machine of the broker"
            )
            self._broker.audit.refused(caller, Action.DESCRIBE, subject, reason)
            raise PermissionDenied(reason)
        details: dict[str, object] = {"credentials": self._access.credential_count}
        await self._broker.audit.write(Record("describe_proofs", subject, details=details), caller)

    def _is_limited(self, caller: Principal) -> bool:
        return not caller.is_superuser


def _seen_by(caller: Principal, state: pb.AccessState) -> pb.AccessState:
    subjects = {f"user:{caller.user}", *(f"role:{role}" for role in caller.roles)}
    return pb.AccessState(
        users=[one for one in state.users if one.name == caller.user],
        credentials=[one for one in state.credentials if one.user == caller.user],
        policies=[one for one in state.policies if one.subject in subjects],
        quotas=[one for one in state.quotas if one.subject in (f"user:{caller.user}", "default")],
        namespaces=[one for one in state.namespaces if one.name in caller.namespaces],
        version=state.version,
    )


def _is_loopback(address: str) -> bool:
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return False
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return (mapped or found).is_loopback


def _question(request: pb.CheckAccessRequest) -> tuple[Action, Resource]:
    try:
        return Action(request.action), Resource(Kind(request.kind), request.name)
    except ValueError:
        raise IllegalRequest(
            f"{request.action[:50]!r} on {request.kind[:50]!r}: actions are {', '.join(Action)}, "
            f"on {', '.join(Kind)}"
        ) from None
