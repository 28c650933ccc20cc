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

import asyncio
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from highway.broker.authentication import Identity, Refusal
from highway.mqtt import ReasonCode

from .hashing import PasswordChecks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from highway.broker.authentication import Answer, Login
    from highway.broker.connections.client import Client
    from highway.config.models import AuthSettings
    from highway.metrics import Histogram

    from .plugins import PluginHost

__all__ = ["FAILURE_DELAY_S", "Access", "Gate", "certificate_name", "keep_fresh", "load_access", "open_gate"]

FAILURE_DELAY_S = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Access:
    """Everything that decides who is let in, loaded and ready: it is exchanged as a whole, or not at all."""

    settings: AuthSettings
    passwords: PasswordChecks | None = None
    plugins: PluginHost | None = None

    def close(self) -> None:
        """Let go of its threads. Blocks while plugins end, for two seconds at most."""
        if self.passwords is not None:
            self.passwords.close()
        if self.plugins is not None:
            self.plugins.close()


def load_access(settings: AuthSettings, loop: asyncio.AbstractEventLoop, seconds: Histogram) -> Access:
    """What `settings` come to; `seconds` gets how long plugins take to decide.

    Blocks while plugins are made; PluginError if one can't be, and nothing is left of it.
    """
    plugins = None
    if settings.plugins:
        from .plugins import PluginHost  # noqa: PLC0415  amqtt takes a while, and most have no plugins

        plugins = PluginHost(settings, loop, seconds)
        plugins.start()
    passwords = None if settings.passwords is None else PasswordChecks(settings.passwords, loop)
    return Access(settings, passwords, plugins)


class Gate:
    """Answers who a client is, by one `Access` at a time."""

    __slots__ = ("_access", "_loop", "_seconds")

    def __init__(self, access: Access, loop: asyncio.AbstractEventLoop, seconds: Histogram) -> None:
        self._access = access
        self._loop = loop
        self._seconds = seconds

    @property
    def access(self) -> Access:
        """What it goes by."""
        return self._access

    @property
    def lets_anybody_in(self) -> bool:
        """Whether clients may come without a name."""
        return self._access.settings.anonymous

    async def prepare(self, settings: AuthSettings) -> Access:
        """What `settings` come to, for `change`; PluginError if that can't be had. What is in use is used again."""
        if settings == self._access.settings:
            return self._access
        return await asyncio.to_thread(load_access, settings, self._loop, self._seconds)

    async def let_go(self, access: Access) -> None:
        """Close what `change` gave back, or what was prepared in vain; not what is in use."""
        if access is not self._access:
            await asyncio.to_thread(access.close)

    def change(self, access: Access, clients: Iterable[Client]) -> Access:
        """Go by `access` from now on; returns the one before, which the caller closes, off the loop.

        Those who are in stay in, and plugins get to know them; what they may do has to be worked out again, and who of
        them is not known any more is for the caller to find by `still_knows`. Those who wait for an answer are not
        heard any more: they time out, and come back.
        """
        before, self._access = self._access, access
        if access.plugins is not None:
            access.plugins.forget()
        if access is before:
            return before
        for client in clients:
            identity = client.identity
            companion = None
            if access.plugins is not None and client.login_shown is not None:
                companion = access.plugins.welcome(client.login_shown, identity.user)
            client.identity = replace(identity, companion=companion)
        return before

    def authenticate(self, login: Login, done: Callable[[Answer], None]) -> Answer | None:
        """See `Authenticator`."""
        settings, passwords = self._access.settings, self._access.passwords
        user, name = login.username, certificate_name(login.ssl_object)
        if name and (login.password is None or not self._checks_names):
            if self._checks_names and user not in (None, name):
                self._refuse_later(done, f"its certificate is {name!r}'s, and it says that it is {user!r}")
                return None
            return self._ask_plugins(login, Identity(name, name), done, must_agree=False)
        if user is not None and passwords is not None and (passwords.knows(user) or not self._plugins_check_names):
            return self._check_password(passwords, login, user, done)
        if self._plugins_check_names and (user is not None or not settings.anonymous):
            return self._ask_plugins(login, Identity(user, user or ""), done, must_agree=True)
        if settings.anonymous:
            return self._welcome(login, Identity(user))
        why = "it gives no user name" if user is None else "it shows no certificate with a name"
        return Refusal(ReasonCode.NOT_AUTHORIZED, why)

    def still_knows(self, identity: Identity) -> bool:
        """See `Authenticator`. A user of the password file stays where plugins may know that user instead."""
        settings, passwords = self._access.settings, self._access.passwords
        if not identity.by_password or self._plugins_check_names:
            return True
        return settings.anonymous if passwords is None else passwords.knows(identity.user or "")

    @property
    def _plugins_check_names(self) -> bool:
        return self._access.plugins is not None and self._access.plugins.checks_names

    @property
    def _checks_names(self) -> bool:
        return self._access.passwords is not None or self._plugins_check_names

    def _check_password(
        self, passwords: PasswordChecks, login: Login, user: str, done: Callable[[Answer], None]
    ) -> Answer | None:
        identity, password = Identity(user, user, by_password=True), login.password or b""

        def checked(right: bool) -> None:  # noqa: FBT001  the answer itself
            if right:
                done(self._welcome(login, identity))
            else:
                self._refuse_later(done, f"user {user!r}: wrong user name or password")

        if passwords.is_right(user, password):
            return self._welcome(login, identity)
        passwords.check(login, user, password, checked)
        return None

    def _ask_plugins(
        self, login: Login, identity: Identity, done: Callable[[Answer], None], *, must_agree: bool
    ) -> Answer | None:
        """Let plugins say no, or (`must_agree`) want them to say yes."""
        plugins = self._access.plugins
        if plugins is None or not plugins.checks_names:
            return self._welcome(login, identity)
        companion = plugins.welcome(login, identity.user)
        known = replace(identity, companion=companion)

        def answered(verdict: bool | None) -> None:  # noqa: FBT001  the answer itself
            if verdict or (verdict is None and not must_agree):
                done(known)
            else:
                self._refuse_later(done, f"user {identity.user!r}: no plugin lets it in")

        return known if plugins.ask_login(companion, login, answered) else None

    def _welcome(self, login: Login, identity: Identity) -> Identity:
        """The identity, and plugins know of it."""
        plugins = self._access.plugins
        return identity if plugins is None else replace(identity, companion=plugins.welcome(login, identity.user))

    def _refuse_later(self, done: Callable[[Answer], None], why: str) -> None:
        refusal = Refusal(ReasonCode.BAD_USER_NAME_OR_PASSWORD, why)
        self._loop.call_later(FAILURE_DELAY_S, done, refusal)


async def open_gate(settings: AuthSettings, loop: asyncio.AbstractEventLoop, seconds: Histogram) -> Gate:
    """The gate for `settings`, once its plugins are ready."""
    return Gate(await asyncio.to_thread(load_access, settings, loop, seconds), loop, seconds)


def keep_fresh(gate: Gate, renew: Callable[[], None], loop: asyncio.AbstractEventLoop) -> None:
    """Let what topic plugins have decided be forgotten, by `renew`, whenever it is as old as the settings allow."""
    plugins = gate.access.plugins
    if plugins is not None and plugins.topic_plugins:
        renew()
    loop.call_later(gate.access.settings.plugin_cache_s, keep_fresh, gate, renew, loop)


def certificate_name(ssl_object: Any) -> str:
    """The common name in the certificate that the peer showed and TLS verified; "" where there is none, or several."""
    found = ssl_object.getpeercert() if ssl_object is not None else None
    names = [value for part in (found or {}).get("subject", ()) for key, value in part if key == "commonName"]
    return str(names[0]) if len(names) == 1 else ""
