"""A broker over a real log, driven turn by turn: no sockets, no threads, and time that stands still until told."""

from __future__ import annotations

import contextlib
from collections import deque
from typing import TYPE_CHECKING, Any, Self

from highway.broker import Broker, BrokerSettings, TopicEntry
from highway.broker.connections.client import Client
from highway.broker.connections.lifecycle import TOPIC_ALIAS_MAXIMUM
from highway.clock import ManualClock
from highway.mqtt import ServerProtocol
from highway.storage import Durability, LogSettings, Storage, StorageSettings
from tests.harness import packets, packets5

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SMALL = StorageSettings(journal_file_bytes=1024 * 1024, reserve_bytes=64 * 1024)


class Timer:
    def __init__(self, due: float, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        self.due = due
        self.callback = callback
        self.args = args
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class ManualScheduler:
    """The event loop of a rig: `run` turns it until nothing is left to do now."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.soon: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self.timers: list[Timer] = []

    def call_soon(self, callback: Callable[..., object], *args: Any) -> None:
        self.soon.append((callback, args))

    call_soon_threadsafe = call_soon

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> Timer:
        timer = Timer(self.clock.monotonic() + delay, callback, args)
        self.timers.append(timer)
        return timer

    def run(self) -> bool:
        """Run what is ready; True if anything was."""
        ran = False
        while self.soon:
            callback, args = self.soon.popleft()
            callback(*args)
            ran = True
        now = self.clock.monotonic()
        due = sorted((timer for timer in self.timers if timer.due <= now), key=lambda timer: timer.due)
        self.timers = [timer for timer in self.timers if timer.due > now]
        for timer in due:
            if not timer.cancelled:
                timer.callback(*timer.args)
                ran = True
        return ran


class FakeLink:
    """The other end of a connection: what was written, and whether the socket keeps up."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.congested = False
        self.closed = False
        self.reading = True
        self.keep_alive: int | None = None
        self.peer = "rig"
        self.ssl_object: Any = None

    def established(self, keep_alive_s: int) -> None:
        self.keep_alive = keep_alive_s

    def write(self, data: bytes) -> None:
        if not self.closed:
            self.written += data

    def close(self, last: bytes = b"") -> None:
        self.write(last)
        self.closed = True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


class Peer:
    """A client of the rig's broker."""

    def __init__(
        self, rig: Rig, client_id: str, *, clean: bool, connect: bytes | None = None, settle: bool = True
    ) -> None:
        self.rig = rig
        self.link = FakeLink()
        self.protocol = ServerProtocol(
            max_packet_bytes=rig.settings.max_packet_bytes, topic_alias_maximum=TOPIC_ALIAS_MAXIMUM
        )
        self.client = Client(rig.broker, self.link)
        self.feed(connect or packets.connect(client_id, clean=clean))
        if settle:
            rig.settle()

    def feed(self, data: bytes) -> None:
        """Hand bytes to the broker as a connection does, a turn for itself; what has to wait for the disk waits."""
        with contextlib.ExitStack() as stack:
            if not self.rig.broker.gathering.is_open:
                self.rig.broker.gathering.begin()
                stack.callback(self.rig.broker.gathering.end)
            self._take(data)

    def _take(self, data: bytes) -> None:
        path = self.client.fast_path if self.protocol.is_between_packets and self.rig.broker.takes_fast() else None
        if path is not None and path.take(self.client, data):
            return
        self.client.handle(self.protocol.receive_data(data))
        if self.protocol.error is not None and not self.link.closed:
            self.link.write(self.protocol.error_reply(connack_sent=self.client.connack_sent))
            self.link.close()
            self.client.violated()

    def send(self, data: bytes) -> Self:
        """Hand bytes to the broker and let it do all that it can do now."""
        self.feed(data)
        self.rig.settle()
        return self

    def take(self) -> list[tuple[int, bytes]]:
        """The packets written since the last call, as (first byte, body)."""
        found = packets.PacketSplitter().feed(bytes(self.link.written))
        self.link.written.clear()
        return found

    def messages(self) -> list[packets.Message]:
        """The PUBLISH packets among `take`."""
        return [packets.parse_publish(first, body) for first, body in self.take() if first >> 4 == 3]

    def drop(self) -> None:
        """Lose the connection without a DISCONNECT."""
        self.client.lost()
        self.rig.settle()


class Peer5(Peer):
    """A client that speaks MQTT 5; `connack` is what its CONNECT was answered with, None where it was not."""

    def __init__(self, rig: Rig, connect: bytes) -> None:
        super().__init__(rig, "", clean=True, connect=connect)
        answers = self.take()
        self.connack = packets5.parse_connack(*answers[0]) if answers else None
        self._early = answers[1:]  # what came right behind it

    def take(self) -> list[tuple[int, bytes]]:
        early, self._early = getattr(self, "_early", []), []
        return early + super().take()

    def messages(self) -> list[packets5.Message]:
        return [packets5.parse_publish(first, body) for first, body in self.take() if first >> 4 == 3]

    def message(self) -> packets5.Message:
        """The one PUBLISH that came."""
        (message,) = self.messages()
        return message

    def acks(self) -> list[packets5.Ack]:
        """The acknowledgements among `take`."""
        return [packets5.parse_ack(first, body) for first, body in self.take() if 4 <= first >> 4 <= 7]

    def subscribe(self, *filters: tuple[str, int], **properties: Any) -> list[int]:
        """SUBSCRIBE; returns the codes of the SUBACK and keeps what else comes."""
        return self._request(0x90, packets5.subscribe(1, *filters, **properties))

    def unsubscribe(self, *filters: str) -> list[int]:
        """UNSUBSCRIBE; returns the codes of the UNSUBACK and keeps what else comes."""
        return self._request(0xB0, packets5.unsubscribe(1, *filters))

    def _request(self, answer: int, request: bytes) -> list[int]:
        self.send(request)
        found = self.take()
        (body,) = [body for first, body in found if first == answer]
        self._early = [(first, body) for first, body in found if first != answer]
        packet_id, codes, _ = packets5.parse_suback(answer, body)
        assert packet_id == 1
        return codes

    def drain(self) -> list[packets5.Message]:
        """Take and acknowledge until nothing comes any more."""
        got: list[packets5.Message] = []
        while batch := self.take():
            for first, body in batch:
                if first >> 4 == 3:
                    message = packets5.parse_publish(first, body)
                    got.append(message)
                    if message.qos:
                        self.send(packets5.ack(0x40 if message.qos == 1 else 0x50, message.packet_id))
                elif first == 0x62:
                    self.send(packets5.ack(0x70, int.from_bytes(body[:2], "big")))
        return got

    def disconnected_with(self) -> int:
        """The reason code of the DISCONNECT that ended the connection, the last thing that came."""
        assert self.link.closed, "still open"
        first, body = self.take()[-1]
        return packets5.parse_disconnect(first, body)[0]


# Every rig of the test at hand, for its end: one that is not let go of keeps a dozen descriptors open.
RIGS: list[Rig] = []


class Rig:
    """One broker; `entries` are (filter, log name, durability); `delays` (ms) and `per_topic` (logs) by log name."""

    def __init__(
        self,
        directory: Path,
        entries: tuple[tuple[bytes, str, Durability], ...] = ((b"#", "other", Durability.FAST),),
        **settings: Any,
    ) -> None:
        self.directory = directory
        self.clock = ManualClock()
        self.scheduler = ManualScheduler(self.clock)
        delays, max_logs = settings.pop("delays", {}), settings.pop("per_topic", {})
        self.logs = [
            LogSettings(name, durability=durability, per_topic=name in max_logs) for _, name, durability in entries
        ]
        self.settings = BrokerSettings(
            entries=tuple(
                TopicEntry(topic_filter, name, delays.get(name, 0), name in max_logs, max_logs.get(name, 0))
                for topic_filter, name, _ in entries
            ),
            **settings,
        )
        self.start()

    def start(self) -> None:
        RIGS.append(self)
        self.storage = Storage.open(
            self.directory, self.logs, scheduler=self.scheduler, clock=self.clock, settings=SMALL, threads=False
        )
        self.broker = Broker(self.settings, self.storage, self.scheduler, self.clock)
        self.settle()

    def settle(self) -> None:
        """Run the loop and the storage engine until nothing is left to do at this time."""
        self.storage.settle()
        while self.scheduler.run():
            self.storage.settle()

    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.settle()

    def connect(self, client_id: str, *, clean: bool = True) -> Peer:
        return Peer(self, client_id, clean=clean)

    def connect5(self, client_id: str, **settings: Any) -> Peer5:
        """A client of MQTT 5; `settings` are those of `packets5.connect`."""
        return Peer5(self, packets5.connect(client_id, **settings))

    def unsettled(self, data: bytes) -> Peer:
        """A connection that `data` came on, none of which was stored yet."""
        return Peer(self, "", clean=True, connect=data, settle=False)

    def kill(self) -> None:
        """The process dies and is started again: nothing is parked, nothing closed but what the kernel closes."""
        self._let_go()
        self.scheduler.soon.clear()
        self.scheduler.timers.clear()
        self.start()

    def _let_go(self) -> None:
        """Close every descriptor, as the kernel does with those of a process that is gone; nothing is written."""
        storage = self.storage
        if not storage.closed:
            storage._journal.stop()
            storage._let_go()

    def dispose(self) -> None:
        """The test is over."""
        self._let_go()

    def restart(self) -> None:
        """Stop cleanly and start again on the same directory."""
        self.broker.close()
        self.storage.close()
        self.scheduler.soon.clear()
        self.scheduler.timers.clear()
        self.start()
