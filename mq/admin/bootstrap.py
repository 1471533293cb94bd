"""The first administrator of a broker set, and a way back in when all its keys are lost.

Either the operator names it, in a file that `auth.bootstrap_admin_file` names: the leader creates
that user, unless there is a superuser already. Or, where authentication is on, the leader writes a
one-time token into `<data>/bootstrap-token`: a key of the user `bootstrap`, who may do everything
until it has given a superuser a key or a password. Its hash is in the log, so that every node takes
it; the file is on the node that made it. A leader that has no token makes another one, which
replaces the first. The state itself ends the token; then every node deletes its file.

A token is made while there is no superuser, when the keys and passwords of all superusers have
expired, and when the operator asks for it with an empty file in its place: whoever may write to the
data of a broker has everything already.
"""

from __future__ import annotations

import asyncio
import contextlib
import os

from mq.access import keys, passwords
from mq.access.keys import ApiKey
from mq.broker.broker import Broker
from mq.broker.security.audit import BROKER
from mq.broker.security.changes import ChangeRequest, password_id
from mq.broker.security.gate import CLUSTER_USER
from mq.broker.security.key_files import FirstAdmin, first_admin, read_private
from mq.broker.state.access import BOOTSTRAP_USER, SUPERUSER
from mq.errors import IllegalConfig, MqError
from mq.logging import get_logger
from mq.wire.v1.security_pb2 import API_KEY, PASSWORD, AccessChange, Credential, User

log = get_logger(__name__)

TOKEN_FILE = "bootstrap-token"  # noqa: S105 - its name
_PERIOD_S = 0.5


class Bootstrap:
    """`run` it on the loop of the broker."""

    def __init__(self, broker: Broker, data: str, admin_file: str) -> None:
        """IllegalConfig."""
        self._broker = broker
        self._access = broker.state.access
        self._path = os.path.join(data, TOKEN_FILE)
        self._admin = first_admin(admin_file) if admin_file else None
        if self._admin is not None and self._admin.user in (BOOTSTRAP_USER, CLUSTER_USER):
            raise IllegalConfig(
                f"auth.bootstrap_admin_file: {self._admin.user} is a user of the broker's own"
            )
        self._trouble = ""

    async def run(self) -> None:
        while True:
            try:
                await self.step()
                self._trouble = ""
            except (MqError, OSError) as error:
                if str(error) != self._trouble:
                    log.warning("there is no first administrator yet", error=str(error))
                self._trouble = str(error)
            except Exception:
                log.exception("the first administrator is not made by a mistake of the broker")
            await asyncio.sleep(_PERIOD_S)

    async def step(self) -> None:
        """Does what is to be done now, if anything."""
        leadership = self._broker.leadership
        if leadership.is_serving:
            if self._admin is not None and not self._access.has_superuser():
                await self._create(self._admin)
            elif not self._broker.gate.is_off and (self._is_asked() or self._is_closed()):
                await self._offer_token()
        if leadership.is_current:
            self._drop_stale()

    # -- named by the operator --------------------------------------------------------------------

    async def _create(self, admin: FirstAdmin) -> None:
        if self._access.user(admin.user) is not None:
            raise IllegalConfig(
                f"auth.bootstrap_admin_file: there is a user {admin.user}, who is left as it is: "
                "name another one"
            )
        if admin.key is not None:
            credential = _credential(admin.user, admin.key)
        else:
            proof = await asyncio.to_thread(passwords.hashed, admin.password)
            credential = Credential(
                id=password_id(admin.user), user=admin.user, type=PASSWORD, proof=proof
            )
        user = User(name=admin.user, roles=[SUPERUSER])
        await self._change(AccessChange(put_user=user), AccessChange(put_credential=credential))
        log.info("the first administrator was created", user=admin.user)

    # -- by a one-time token ----------------------------------------------------------------------

    def _is_asked(self) -> bool:
        with contextlib.suppress(OSError):
            return os.lstat(self._path).st_size == 0
        return False

    def _is_closed(self) -> bool:
        """No superuser can come in, as far as can be known: those without a key may have a
        certificate.
        """
        now_ms = self._broker.now_ms()
        for user in self._access.superusers():
            ways = [
                one for one in self._access.credentials_of(user) if one.type in (API_KEY, PASSWORD)
            ]
            if not ways or any(not 0 < one.expires_at_ms <= now_ms for one in ways):
                return False
        return True

    async def _offer_token(self) -> None:
        key = self._token()
        if key is not None and self._is_live(key):
            return
        key, hidden = keys.new(), f"{self._path}.new"
        await asyncio.to_thread(_write_private, hidden, key.text)
        others = [one.id for one in self._access.credentials_of(BOOTSTRAP_USER)]
        await self._change(
            AccessChange(put_user=User(name=BOOTSTRAP_USER, roles=[SUPERUSER])),
            *(AccessChange(drop_credential=one) for one in others),
            AccessChange(put_credential=_credential(BOOTSTRAP_USER, key)),
        )
        # It is there when it can be used.
        os.replace(hidden, self._path)
        log.warning("a one-time token waits for the first administrator", file=self._path)

    def _drop_stale(self) -> None:
        """Of a token that is over, or that another node has replaced."""
        if not os.path.lexists(self._path):
            return
        key = self._token()
        if key is None or not self._is_live(key):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)
            log.info("the one-time token is over", file=self._path)

    def _token(self) -> ApiKey | None:
        """None: there is no file, or nothing of use in it."""
        try:
            return keys.parse(
                read_private(TOKEN_FILE, self._path).decode("ascii", "replace").strip()
            )
        except IllegalConfig:
            return None

    def _is_live(self, key: ApiKey) -> bool:
        found = self._access.credential(key.id)
        return (
            found is not None
            and found.user == BOOTSTRAP_USER
            and keys.is_right(key.secret, found.proof)
        )

    async def _change(self, *changes: AccessChange) -> None:
        request = ChangeRequest(changes, BROKER, internal="bootstrap")
        await self._broker.access_changes.change(request)


def _credential(user: str, key: ApiKey) -> Credential:
    return Credential(id=key.id, user=user, type=API_KEY, proof=keys.digest(key.secret))


def _write_private(path: str, text: str) -> None:
    """Never readable by others."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text + "\n")
        file.flush()
        os.fsync(file.fileno())
