"""The plugin host: amqtt's authentication, topic and event plugins, unchanged, on a loop in a thread of their own.

A plugin is named under `auth: plugins:` by its class, with the options that amqtt gives it. What it says counts as in
amqtt: all authentication plugins are asked, one `False` is no, and no `True` is no; all topic plugins have to say
`True`. An exception is no, and so is no answer in time, also where the plugin blocks its thread and everything in it:
the clock that says so is the broker's. What was decided holds for `plugin_cache`.

Events are told for broker start and shutdown, and for clients that connect, disconnect, subscribe and unsubscribe.
There are none for packets and messages, which would cost each message more than everything else that is done with it.

Owner: the event loop, but for what says that it runs in the thread.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import threading
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any

from amqtt.contexts import Action
from amqtt.events import BrokerEvents, MQTTEvents
from amqtt.plugins.base import BaseAuthPlugin, BaseTopicPlugin
from amqtt.session import Session

from highway.broker.authorisation import Right
from highway.errors import HighwayError
from highway.log_lines import about

from .plugin_loading import PluginError, load_plugin

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from amqtt.plugins.base import BasePlugin

    from highway.broker.authentication import Login
    from highway.broker.authorisation import Judge, Question
    from highway.config.models import AuthSettings
    from highway.metrics import Histogram

__all__ = ["PluginClient", "PluginError", "PluginHost"]

logger = logging.getLogger("highway.plugins")

# What plugins are told of.
_TOLD = {
    BrokerEvents.PRE_START,
    BrokerEvents.POST_START,
    BrokerEvents.PRE_SHUTDOWN,
    BrokerEvents.POST_SHUTDOWN,
    BrokerEvents.CLIENT_CONNECTED,
    BrokerEvents.CLIENT_DISCONNECTED,
    BrokerEvents.CLIENT_SUBSCRIBED,
    BrokerEvents.CLIENT_UNSUBSCRIBED,
}
# Events that wait for a plugin which is busy; what comes above it is dropped.
MAX_EVENTS = 10_000
# Logins that plugins allowed and that are remembered, at 100 bytes each.
MAX_LOGINS = 10_000
# After so many questions without an answer in time only some are asked: each one waits in the thread's memory.
MAX_UNANSWERED = 1_000
ASKED_THEN = 100  # each hundredth
START_TIMEOUT_S = 20.0  # `highway reload` waits for 30
STOP_TIMEOUT_S = 2.0

# What a right is in amqtt's words: (for a topic, for a filter).
_ACTIONS: dict[Right, tuple[tuple[Action, ...], tuple[Action, ...]]] = {
    Right.PUBLISH: ((Action.PUBLISH,), (Action.PUBLISH,)),
    Right.SUBSCRIBE: ((Action.RECEIVE,), (Action.SUBSCRIBE,)),
    Right.REPLAY: ((Action.RECEIVE,), (Action.SUBSCRIBE,)),
    Right.FETCH: ((Action.SUBSCRIBE, Action.RECEIVE), (Action.SUBSCRIBE, Action.RECEIVE)),
}


class _PeerCertificate:
    """The certificate of a client, for plugins that look at it: the connection itself is another thread's."""

    def __init__(self, ssl_object: Any) -> None:
        self._der = ssl_object.getpeercert(binary_form=True)
        self._parsed = ssl_object.getpeercert()

    def getpeercert(self, binary_form: bool = False) -> Any:  # noqa: FBT001, FBT002  the ssl module's signature
        return self._der if binary_form else self._parsed


class PluginClient:
    """One client as plugins know it: the `Companion` and `Judge` of the broker. It has one amqtt session."""

    __slots__ = ("_host", "session")

    def __init__(self, host: PluginHost, login: Login, user: str | None) -> None:
        self._host = host
        self.session = _session_of(login, user)

    @property
    def judge(self) -> Judge | None:
        """Itself, where there is a plugin that has a say about topics."""
        return self if self._host.topic_plugins else None

    def decide(self, question: Question, done: Callable[[bool], None]) -> None:
        """See `Judge`."""
        self._host.decide(self, question, done)

    def connected(self) -> None:
        self._host.tell(BrokerEvents.CLIENT_CONNECTED, client_id=self.session.client_id, client_session=self.session)

    def disconnected(self) -> None:
        self._host.tell(BrokerEvents.CLIENT_DISCONNECTED, client_id=self.session.client_id, client_session=self.session)

    def subscribed(self, topic_filter: bytes, qos: int) -> None:
        topic = topic_filter.decode()
        self._host.tell(BrokerEvents.CLIENT_SUBSCRIBED, client_id=self.session.client_id, topic=topic, qos=qos)

    def unsubscribed(self, topic_filter: bytes) -> None:
        self._host.tell(BrokerEvents.CLIENT_UNSUBSCRIBED, client_id=self.session.client_id, topic=topic_filter.decode())


def _session_of(login: Login, user: str | None) -> Session:
    session = Session()
    session.client_id = login.client_id
    session.username = login.username if user is None else user
    if login.password is not None:
        session.password = login.password.decode("utf-8", "surrogateescape")
    session.clean_session = login.clean_start
    session.keep_alive = login.keep_alive
    host, _, port = login.peer.rpartition(":")
    session.remote_address, session.remote_port = host.strip("[]"), int(port) if port.isdigit() else None
    session.is_anonymous = session.username is None
    if login.ssl_object is not None:
        session.ssl_object = _PeerCertificate(login.ssl_object)
    return session


class PluginHost:
    """The plugins of one configuration. `start` before anything else, and `close` in the end, block for a while."""

    def __init__(self, settings: AuthSettings, loop: asyncio.AbstractEventLoop, seconds: Histogram) -> None:
        self._settings = settings
        self._loop = loop
        self._seconds = seconds  # how long decisions took
        self._side = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="plugins", daemon=True)
        self._stopping = False
        self._plugins: list[BasePlugin[Any]] = []
        self._auth_plugins: list[BaseAuthPlugin] = []
        self.topic_plugins: list[BaseTopicPlugin] = []
        self._handlers: dict[BrokerEvents, list[Callable[..., Awaitable[None]]]] = {}
        self._events_waiting = 0
        self._unanswered = 0
        self._logins: dict[bytes, float] = {}
        self._key = os.urandom(32)

    @property
    def checks_names(self) -> bool:
        """Whether there is a plugin that has a say about logins."""
        return bool(self._auth_plugins)

    # Start and end.

    def start(self) -> None:
        """Load the plugins, and tell them that the broker starts. Raises PluginError, and is closed again then."""
        self._thread.start()
        try:
            asyncio.run_coroutine_threadsafe(self._load(), self._side).result(START_TIMEOUT_S)
        except TimeoutError:
            self.close()
            raise PluginError("auth.plugins", f"not ready within {START_TIMEOUT_S:g} s") from None
        except BaseException as error:
            self.close()
            if isinstance(error, HighwayError):
                raise
            # What ends a program in a plugin's hands must not end this one.
            raise PluginError("auth.plugins", f"{type(error).__name__}: {error}") from error

    async def _load(self) -> None:
        """In the thread, as plugins may want a loop that runs when they are made."""
        for item in self._settings.plugins:
            plugin = load_plugin(item, self._side)
            self._plugins.append(plugin)
            if isinstance(plugin, BaseAuthPlugin):
                self._auth_plugins.append(plugin)
            if isinstance(plugin, BaseTopicPlugin):
                self.topic_plugins.append(plugin)
            self._find_handlers(plugin, item.name)
        for event in (BrokerEvents.PRE_START, BrokerEvents.POST_START):
            for handler in self._handlers.get(event, ()):
                try:
                    await handler()
                except BaseException as error:
                    raise PluginError("auth.plugins", f"on_{event}: {type(error).__name__}: {error}") from error

    def _find_handlers(self, plugin: BasePlugin[Any], name: str) -> None:
        for event in (*BrokerEvents, *MQTTEvents):
            handler = getattr(plugin, f"on_{event}", None)
            if handler is None:
                continue
            if event in _TOLD and iscoroutinefunction(handler):
                self._handlers.setdefault(event, []).append(handler)
            elif hasattr(type(plugin), f"on_{event}"):
                logger.warning("%s.on_%s is never called: there is no such event here", name, event)

    def _run(self) -> None:
        """The thread."""
        asyncio.set_event_loop(self._side)
        while not self._stopping:
            try:
                self._side.run_forever()
            except BaseException:
                logger.exception("a plugin has raised what ends a program")
        self._side.close()

    def close(self) -> None:
        """Tell the plugins that the broker ends, and let the thread go; a plugin that doesn't is left alone."""
        if not self._thread.is_alive():
            return
        ended = asyncio.run_coroutine_threadsafe(self._end(), self._side)
        try:
            ended.result(STOP_TIMEOUT_S)
        except Exception as error:  # noqa: BLE001  whatever it is, the broker ends
            logger.warning("plugins did not end in time: %s", type(error).__name__)
        self._stopping = True
        self._side.call_soon_threadsafe(self._side.stop)
        self._thread.join(STOP_TIMEOUT_S)

    async def _end(self) -> None:
        """In the thread."""
        calls = [
            *self._handlers.get(BrokerEvents.PRE_SHUTDOWN, ()),
            *self._handlers.get(BrokerEvents.POST_SHUTDOWN, ()),
        ]
        for call in (*calls, *(plugin.close for plugin in self._plugins)):
            await self._guarded("close", call(), None)
        mine = asyncio.current_task()
        for task in asyncio.all_tasks():
            if task is not mine:
                task.cancel()

    # Logins.

    def welcome(self, login: Login, user: str | None) -> PluginClient:
        """A client that is `user`, or isn't known yet (None): as plugins are to know it."""
        return PluginClient(self, login, user)

    def ask_login(self, client: PluginClient, login: Login, done: Callable[[bool | None], None]) -> bool | None:
        """Ask whether a client may come in: True, False, or None where no plugin can tell.

        The answer is True at once where it was so a short while ago, or else None, and `done` is called with it.
        """
        digest = self._digest(login)
        now = self._loop.time()
        if self._logins.get(digest, 0.0) > now:
            return True

        def answered(verdict: bool | None) -> None:  # noqa: FBT001  the answer itself
            if verdict:
                if len(self._logins) >= MAX_LOGINS:
                    self._logins.clear()
                self._logins[digest] = self._loop.time() + self._settings.plugin_cache_s
            done(verdict)

        self._ask("authenticate", lambda: self._authenticate(client.session), answered)
        return None

    def forget(self) -> None:
        """Ask again about logins that were allowed."""
        self._logins.clear()

    def _digest(self, login: Login) -> bytes:
        certificate = b"" if login.ssl_object is None else login.ssl_object.getpeercert(binary_form=True) or b""
        parts = [login.client_id.encode(), (login.username or "\0").encode(), login.password or b"\0", certificate]
        framed = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
        return hashlib.blake2b(framed, key=self._key, digest_size=32).digest()

    async def _authenticate(self, session: Session) -> bool | None:
        """In the thread."""
        verdict: bool | None = None
        for plugin in self._auth_plugins:
            found = await plugin.authenticate(session=session)
            if found is None:
                continue
            if not found:
                return False
            verdict = True
        return verdict

    # Topics.

    def decide(self, client: PluginClient, question: Question, done: Callable[[bool], None]) -> None:
        """Answer a question about one client."""
        actions = _ACTIONS[question.right][question.selects]
        topic = question.topic.decode()
        self._ask(
            "topic_filtering",
            lambda: self._filter(client.session, topic, actions),
            lambda verdict: done(bool(verdict)),
        )

    async def _filter(self, session: Session, topic: str, actions: tuple[Action, ...]) -> bool:
        """In the thread."""
        for action in actions:
            for plugin in self.topic_plugins:
                if not await plugin.topic_filtering(session=session, topic=topic, action=action):
                    return False
        return True

    # Asking and telling.

    def _ask(
        self, what: str, make: Callable[[], Coroutine[Any, Any, bool | None]], done: Callable[[bool | None], None]
    ) -> None:
        """Call `done` with what `make`'s coroutine returns in the thread, or with False: in a later turn, and once."""
        if self._unanswered > MAX_UNANSWERED:
            self._unanswered += 1
            if self._unanswered % ASKED_THEN:
                self._loop.call_soon(done, False)
                return
        begun = self._loop.time()
        answers: list[bool] = []  # that one was given

        def settle(verdict: bool | None) -> None:  # noqa: FBT001  the answer itself
            if answers:
                return
            answers.append(True)
            timer.cancel()
            self._seconds.observe(self._loop.time() - begun)
            done(verdict)

        def answered(verdict: bool | None) -> None:  # noqa: FBT001  the answer itself
            self._unanswered = 0
            settle(verdict)

        def timed_out() -> None:
            self._unanswered += 1
            future.cancel()
            logger.warning("no answer to %s within %g s: it counts as no", what, self._settings.plugin_timeout_s)
            settle(False)

        timer = self._loop.call_later(self._settings.plugin_timeout_s, timed_out)

        def reply(verdict: bool | None) -> None:  # noqa: FBT001  the answer itself
            self._loop.call_soon_threadsafe(answered, verdict)

        future = asyncio.run_coroutine_threadsafe(self._guarded(what, make(), reply), self._side)

    async def _guarded(self, what: str, call: Awaitable[Any], reply: Callable[[Any], object] | None) -> None:
        """In the thread: whatever a plugin raises is no, and ends nothing else."""
        try:
            verdict = await call
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            # Its text may hold what it was given: a password, a token.
            logger.warning("a plugin's %s failed with %s: it counts as no", what, type(error).__name__)
            logger.debug("where it did", exc_info=error)
            verdict = False
        if reply is not None:
            try:
                reply(verdict)
            except RuntimeError:
                return  # the broker has ended

    def tell(self, event: BrokerEvents, **fields: Any) -> None:
        """Tell the plugins of an event; nobody waits for them."""
        handlers = self._handlers.get(event)
        if not handlers or self._stopping:
            return
        if self._events_waiting >= MAX_EVENTS:
            logger.warning("an event is dropped: %d wait for a plugin", MAX_EVENTS, extra=about())
            return
        for handler in handlers:
            self._events_waiting += 1
            call = self._handle_event(f"on_{event}", handler, fields)
            asyncio.run_coroutine_threadsafe(call, self._side)

    async def _handle_event(self, what: str, handler: Callable[..., Awaitable[None]], fields: dict[str, Any]) -> None:
        """In the thread."""

        async def call() -> None:
            async with asyncio.timeout(self._settings.plugin_timeout_s):
                await handler(**fields)

        await self._guarded(what, call(), lambda _: self._loop.call_soon_threadsafe(self._event_handled))

    def _event_handled(self) -> None:
        self._events_waiting -= 1
