"""Who a client is: what a CONNECT shows, what the broker is told about it, and whom a session belongs to.

The broker looks at nothing of a session before it has an `Identity`: a stranger who knows a client id changes nothing.
A session belongs to the identity that made it. Another one is refused under its client id, whoever is connected: the
choice is between telling it that the id is taken and letting it end what isn't its own.

Owner: the event loop.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from highway.mqtt import ReasonCode

if TYPE_CHECKING:
    from collections.abc import Callable

    from .authorisation import Judge

__all__ = ["Answer", "Authenticator", "Companion", "Identity", "Login", "Refusal", "TrustEverybody", "owns"]


@dataclass(slots=True, eq=False)
class Login:
    """What a CONNECT shows of its client. `is_abandoned`: nobody waits for the answer any more."""

    client_id: str
    username: str | None = None
    password: bytes | None = None
    peer: str = ""
    ssl_object: Any = None  # of a TLS connection, as the ssl module has it
    clean_start: bool = True
    keep_alive: int = 0  # seconds
    is_abandoned: bool = False


class Companion(Protocol):
    """What else is told about one client, from its login to its end, and may have a say in what it does: plugins."""

    @property
    def judge(self) -> Judge | None:
        """Who has a say about topics; None where nobody has."""

    def connected(self) -> None:
        """Its CONNECT was answered with success."""

    def disconnected(self) -> None:
        """Its connection ended."""

    def subscribed(self, topic_filter: bytes, qos: int) -> None:
        """It was granted a subscription."""

    def unsubscribed(self, topic_filter: bytes) -> None:
        """It ended one."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a client is: `user` is what rules call it, `owner` whom its sessions belong to.

    They differ where nothing checks user names: rules may speak of a name that a client gives itself, and sessions
    belong to nobody then (None), which is what all anonymous clients have in common.
    """

    user: str | None = None
    owner: str | None = None
    companion: Companion | None = field(default=None, compare=False)
    by_password: bool = field(default=False, compare=False)  # it is who it is as long as a password file knows the user


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a client isn't let in; `why` is for the log and has no password in it."""

    reason_code: int
    why: str


Answer: TypeAlias = "Identity | Refusal"


class Authenticator(Protocol):
    """Finds out who a client is."""

    @property
    def lets_anybody_in(self) -> bool:
        """Whether clients may come without a name."""

    def authenticate(self, login: Login, done: Callable[[Answer], None]) -> Answer | None:
        """The answer, or None where it takes time: then `done` is called with it, in a later turn of the loop."""

    def still_knows(self, identity: Identity) -> bool:
        """Whether somebody who was let in would be by that name, now that others may be known."""


class TrustEverybody:
    """Lets in who comes, under the name that it gives itself; or nobody."""

    def __init__(self, *, anonymous: bool = True) -> None:
        self.lets_anybody_in = anonymous

    def authenticate(self, login: Login, done: Callable[[Answer], None]) -> Answer | None:  # noqa: ARG002  the Protocol's
        if self.lets_anybody_in:
            return Identity(login.username)
        return Refusal(ReasonCode.NOT_AUTHORIZED, "anonymous clients are not let in")

    def still_knows(self, identity: Identity) -> bool:  # noqa: ARG002  the Protocol's
        return True


def owns(owner: str | None, identity: Identity, *, anonymous: bool) -> bool:
    """Whether a session of `owner` is one of `identity`.

    What was made while anybody could come belongs to the first who asks for it, once that isn't so any more: nobody
    else could ever return to it.
    """
    return owner == identity.owner or (owner is None and not anonymous)
