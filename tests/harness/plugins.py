"""Plugins of nobody's: what a third party might write for amqtt, good and bad."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from pathlib import Path

from amqtt.contexts import Action
from amqtt.plugins.base import BaseAuthPlugin, BasePlugin, BaseTopicPlugin


class Door(BaseAuthPlugin):
    """Lets in who says the word; and misbehaves for some."""

    async def authenticate(self, *, session):
        if session.username == "raises":
            raise ValueError(session.password)
        if session.username == "exits":
            raise SystemExit
        if session.username == "hangs":
            await asyncio.sleep(3600)  # as one whose database never answers
        if session.username == "blocks":
            time.sleep(2)  # noqa: ASYNC251  that is the point
        if session.username == "shrugs":
            return None
        return session.password == self.config.word

    @dataclass
    class Config:
        word: str


class Topics(BaseTopicPlugin):
    """Allows what begins with the user's name, and writes down what it was asked."""

    async def topic_filtering(self, *, session=None, topic=None, action=None):
        with Path(self.config.diary).open("a") as diary:  # noqa: ASYNC230  a line of a few bytes
            diary.write(f"{session.client_id} {action} {topic}\n")
        if "hangs" in topic and action == Action.PUBLISH:
            await asyncio.sleep(3600)  # see above
        if "raises" in topic:
            raise ValueError(topic)
        if topic.endswith("/secret") and action == Action.RECEIVE:
            return False
        return topic.startswith(tuple(self.config.prefixes)) or topic.split("/")[0] == (session.username or "anybody")

    @dataclass
    class Config:
        diary: str
        prefixes: list[str] = field(default_factory=list)


class Events(BasePlugin):
    """Writes down what happens."""

    def _write(self, line):
        with Path(self.config.diary).open("a") as diary:
            diary.write(line + "\n")

    async def on_broker_pre_start(self):
        self._write("pre_start")

    async def on_broker_client_connected(self, *, client_id, client_session):
        self._write(f"connected {client_id} {client_session.username}")

    async def on_broker_client_disconnected(self, *, client_id, client_session):
        self._write(f"disconnected {client_id} {client_session.username}")

    async def on_broker_client_subscribed(self, *, client_id, topic, qos):
        self._write(f"subscribed {client_id} {topic} {qos}")

    async def on_broker_client_unsubscribed(self, *, client_id, topic):
        self._write(f"unsubscribed {client_id} {topic}")

    async def on_broker_message_received(self, *, client_id, message):
        self._write(f"message {client_id}")

    async def on_broker_pre_shutdown(self):
        self._write("pre_shutdown")

    async def close(self):
        self._write("close")

    @dataclass
    class Config:
        diary: str


class NeedsBroker(BasePlugin):
    """Wants what only amqtt's broker has."""

    async def on_broker_pre_start(self):
        await self.context.broadcast_message("a", b"x")


class Exits(BasePlugin):
    """Ends the program when it is made, or (`when: start`) told that the broker starts; or its options can't be had."""

    @dataclass
    class Config:
        when: str = "made"

        def __post_init__(self):
            if self.when == "options":
                raise SystemExit(5)

    def __init__(self, context):
        super().__init__(context)
        if self.config.when == "made":
            raise SystemExit(5)

    async def on_broker_pre_start(self):
        raise SystemExit(5)


class NoCoroutine(BaseAuthPlugin):
    def authenticate(self, *, session):
        return True
