"""A broker over a real log, driven turn by turn: no sockets, no threads, and time that stands still until told."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from highway.broker import Broker, BrokerSettings, TopicEntry
from highway.broker.client import Client
from highway.clock import ManualClock
from highway.mqtt import ServerProtocol
from highway.storage import Durability, LogSettings, Storage, StorageSettings
from tests.harness import packets

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SMALL = StorageSettings(journal_file_bytes=1024 * 1024)


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

    def established(self, keep_alive_s: int) -> None:
        self.keep_alive = keep_alive_s

    def write(self, data: bytes) -> None:
        if not self.closed:
            self.written += data

    def close(self) -> None:
        self.closed = True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


class Peer:
    """A client of the rig's broker."""

    def __init__(self, rig: Rig, client_id: str, *, clean: bool, connect: bytes | None = None) -> None:
        self.rig = rig
        self.link = FakeLink()
        self.protocol = ServerProtocol(versions=(3, 4))
        self.client = Client(rig.broker, self.link)
        self.send(connect or packets.connect(client_id, clean=clean))

    def send(self, data: bytes) -> Peer:
        """Hand bytes to the broker and let it do all that it can do now."""
        self.client.handle(self.protocol.receive_data(data))
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


class Rig:
    """One broker; `entries` are (filter, log name, durability)."""

    def __init__(
        self,
        directory: Path,
        entries: tuple[tuple[bytes, str, Durability], ...] = ((b"#", "other", Durability.FAST),),
        **settings: Any,
    ) -> None:
        self.directory = directory
        self.clock = ManualClock()
        self.scheduler = ManualScheduler(self.clock)
        self.logs = [LogSettings(name, durability=durability) for _, name, durability in entries]
        delays = settings.pop("delays", {})
        self.settings = BrokerSettings(
            entries=tuple(TopicEntry(topic_filter, name, delays.get(name, 0)) for topic_filter, name, _ in entries),
            **settings,
        )
        self.start()

    def start(self) -> None:
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

    def restart(self) -> None:
        """Stop cleanly and start again on the same directory."""
        self.broker.close()
        self.storage.close()
        self.scheduler.soon.clear()
        self.scheduler.timers.clear()
        self.start()
