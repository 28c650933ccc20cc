"""Where the loop's time goes: processor microseconds of a PUBLISH by stage, without sockets.

    python -m tests.benchmarks.stages

A broker on a real data directory, its journal thread at work, and connections whose transports only count. The least of
many repetitions stands, of the loop's thread alone. What the kernel and the event loop take comes on top: see
highway/server/README.md.
"""

from __future__ import annotations

import asyncio
import gc
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvloop

from highway.broker import Broker, BrokerSettings, TopicEntry
from highway.clock import SystemClock
from highway.server.connection import Connection, Connections
from highway.storage import Durability, LogSettings, Storage
from tests.harness import packets

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Stages"]

TOPIC = "highway/A{}/telemetry"  # of each device its own
PAYLOAD = b'{"ts": 1790000000000, "sensor": "A1-003", "speed_kmh": 82.5, "temp_c": 21.0, "kind": "car", "seq": 12}'
MESSAGES = 3000  # between two rests, in which the journal and the segments catch up
REPETITIONS = 40
REST_S = 0.02


class CountingTransport:
    """Where a connection writes to."""

    def __init__(self) -> None:
        self.written = 0

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name == "peername" else default

    def set_write_buffer_limits(self, *, high: int) -> None: ...

    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes) -> None:
        self.written += len(data)

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def close(self) -> None: ...

    abort = close


class Stages:
    """A broker in this process, and what its parts take."""

    def __init__(self, directory: Path, durability: Durability, loop: asyncio.AbstractEventLoop) -> None:
        clock = SystemClock()
        self.storage = Storage.open(directory, [LogSettings("log", durability)], scheduler=loop, clock=clock)
        self.broker = Broker(BrokerSettings(entries=(TopicEntry(b"#", "log"),)), self.storage, loop, clock)
        self.shared = Connections(self.broker, loop)
        self.found: dict[str, float] = {}

    def connect(self, count: int) -> list[Connection]:
        """Connected clients."""
        found = []
        for number in range(count):
            connection = Connection(self.shared)
            connection.connection_made(CountingTransport())  # type: ignore[arg-type]
            connection.data_received(packets.connect(f"c{number}"))
            found.append(connection)
        return found

    async def measure(self, name: str, messages: int, call: Callable[[], object]) -> None:
        """Find what `call` takes for each of the `messages` that it handles."""
        least = float("inf")
        for _ in range(REPETITIONS):
            calls = max(1, MESSAGES // messages)
            began = time.thread_time()
            for _ in range(calls):
                call()
            least = min(least, (time.thread_time() - began) / calls / messages)
            await asyncio.sleep(REST_S)
        self.found[name] = least * 1e6

    async def run(self) -> None:
        """Measure all."""
        connections = self.connect(200)
        await asyncio.sleep(0.1)
        gc.freeze()
        ones = [
            packets.publish(TOPIC.format(number), PAYLOAD, qos=1, packet_id=1) for number in range(len(connections))
        ]
        one, hundreds = ones[0], [ones[0] * 100]
        shared, protocol, client = self.shared, connections[0]._protocol, connections[0].client
        run, runs = protocol.receive_data(one), protocol.receive_data(hundreds[0])

        def turn(count: int, chunks: list[bytes]) -> Callable[[], None]:
            read = list(zip(connections[:count], chunks, strict=False))

            def take() -> None:
                for connection, data in read:
                    connection.data_received(data)
                shared.end_turn()

            return take

        await self.measure("alone: parsed", 1, lambda: protocol.receive_data(one))
        await self.measure("alone: handled", 1, lambda: client.handle(run))
        await self.measure("alone: all of it", 1, turn(1, ones))
        await self.measure("one of 8 in a turn", 8, turn(8, ones))
        await self.measure("one of 200 in a turn", 200, turn(200, ones))
        await self.measure("a hundred in a read: parsed", 100, lambda: protocol.receive_data(hundreds[0]))
        await self.measure("a hundred in a read: handled", 100, lambda: client.handle(runs))
        await self.measure("a hundred in a read: all of it", 100, turn(1, hundreds))

    def close(self) -> None:
        """Stop it."""
        self.broker.close()
        self.storage.close()


async def _run() -> None:
    columns = {}
    for durability in Durability:
        with tempfile.TemporaryDirectory(prefix="highway-stages-") as name:
            stages = Stages(Path(name) / "data", durability, asyncio.get_running_loop())
            try:
                await stages.run()
            finally:
                stages.close()
            columns[durability.name] = stages.found
    print(f"| microseconds of the loop for a message | {' | '.join(columns)} |")  # noqa: T201
    print(f"|---|{'---|' * len(columns)}")  # noqa: T201
    for row in next(iter(columns.values())):
        print(f"| {row} | {' | '.join(f'{column[row]:.2f}' for column in columns.values())} |")  # noqa: T201


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run())
