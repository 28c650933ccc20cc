"""The gate: finds out who a client is, before the broker does anything for it.

    a certificate          that TLS has verified: its common name is the user name, and no password is asked for
    a user of the          the password decides, whatever plugins would say
    password file
    another user           plugins decide, if there are any: one `no`, error or time-out is no, and no `yes` is no
    no user name           `anonymous` lets in; without it plugins are asked, as for another user

Plugins are asked about clients with a certificate as well, and may turn them away. Whoever shows what turns out to be
wrong waits a second for the answer: guessing gets slow, and nobody else does.

Owner: the event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from highway.broker.authentication import Identity, Refusal
from highway.mqtt import ReasonCode

from .hashing import PasswordChecks

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from highway.broker.authentication import Answer, Login
    from highway.config.models import AuthSettings

__all__ = ["FAILURE_DELAY_S", "Gate", "certificate_name"]

FAILURE_DELAY_S = 1.0

_WRONG = "wrong user name or password"


class Gate:
    """Answers who a client is, by one `AuthSettings` at a time."""

    __slots__ = ("_checks", "_loop", "_settings")

    def __init__(self, settings: AuthSettings, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._settings = settings
        self._checks = _checks_of(settings, loop)

    @property
    def lets_anybody_in(self) -> bool:
        """Whether clients may come without a name."""
        return self._settings.anonymous

    def change(self, settings: AuthSettings) -> None:
        """Go by other settings from now on. Those who wait for an answer get it by the old ones."""
        before, self._checks = self._checks, _checks_of(settings, self._loop)
        self._settings = settings
        if before is not None:
            before.close()

    def authenticate(self, login: Login, done: Callable[[Answer], None]) -> Answer | None:
        """See `Authenticator`."""
        name = certificate_name(login.ssl_object)
        if name and (login.password is None or not self._checks_names):
            if self._checks_names and login.username not in (None, name):
                why = f"its certificate is {name!r}'s, and it says that it is {login.username!r}"
                self._refuse_later(done, Refusal(ReasonCode.BAD_USER_NAME_OR_PASSWORD, why))
                return None
            return Identity(name, name)
        if login.username is None:
            if self._settings.anonymous:
                return Identity()
            return Refusal(ReasonCode.NOT_AUTHORIZED, "it gives no user name")
        if self._checks is None:
            if self._settings.anonymous:
                return Identity(login.username)
            return Refusal(ReasonCode.NOT_AUTHORIZED, "it shows no certificate with a name")
        return self._check_password(self._checks, login, login.username, done)

    @property
    def _checks_names(self) -> bool:
        return self._checks is not None

    def _check_password(
        self, checks: PasswordChecks, login: Login, user: str, done: Callable[[Answer], None]
    ) -> Answer | None:
        password = login.password or b""

        def checked(right: bool) -> None:  # noqa: FBT001  the answer itself
            if right:
                done(Identity(user, user))
            else:
                self._refuse_later(done, Refusal(ReasonCode.BAD_USER_NAME_OR_PASSWORD, f"user {user!r}: {_WRONG}"))

        if checks.is_right(user, password):
            return Identity(user, user)
        checks.check(login, user, password, checked)
        return None

    def _refuse_later(self, done: Callable[[Answer], None], refusal: Refusal) -> None:
        self._loop.call_later(FAILURE_DELAY_S, done, refusal)

    def close(self) -> None:
        """Let go of the threads."""
        if self._checks is not None:
            self._checks.close()


def _checks_of(settings: AuthSettings, loop: asyncio.AbstractEventLoop) -> PasswordChecks | None:
    return None if settings.passwords is None else PasswordChecks(settings.passwords, loop)


def certificate_name(ssl_object: Any) -> str:
    """The common name in the certificate that the peer showed and TLS verified; "" where there is none, or several."""
    found = ssl_object.getpeercert() if ssl_object is not None else None
    names = [value for part in (found or {}).get("subject", ()) for key, value in part if key == "commonName"]
    return str(names[0]) if len(names) == 1 else ""
