"""Takes the pictures in examples/screenshots: `python -m tests.screenshots`, with Chromium, in four minutes.

Each shows a real broker under the load that its name says. Timings are those of the machine that takes them.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from playwright.sync_api import sync_playwright

from tests.harness import packets
from tests.harness.broker_process import BrokerProcess, free_port
from tests.harness.certificates import Authority
from tests.harness.publisher import publish_all
from tests.harness.raw_client import RawClient

if TYPE_CHECKING:
    from collections.abc import Iterator

TARGET = Path(__file__).parents[1] / "examples" / "screenshots"
TOPICS = [
    {"topic": "plant/+/telemetry", "log": "telemetry", "durability": "BALANCED", "retention": "7d"},
    {"topic": "plant/+/position", "log": "position", "durability": "FAST", "retention": "2d"},
    {"topic": "plant/+/control", "log": "control", "durability": "SAFE", "retention": "90d"},
]
TRUCKS = 240
WARM_UP_S = 75.0  # so that the charts and sparklines have something to show


def reading(truck: int, tick: int) -> bytes:
    value = {
        "speed_kmh": round(62 + 18 * math.sin(tick / 60 + truck) + random.random() * 3, 1),
        "engine_c": round(88 + 4 * math.sin(tick / 90) + random.random(), 1),
        "fuel_l": round(400 - tick * 0.03, 2),
    }
    return json.dumps(value).encode()


class Plant(threading.Thread):
    """Trucks that send readings, at about `rate` messages a second all together."""

    def __init__(self, port: int, rate: float) -> None:
        super().__init__(daemon=True)
        self._client = RawClient.connected(port, "gateway")
        self._rate = rate
        self._ended = threading.Event()

    def run(self) -> None:
        tick = 0
        while not self._ended.wait(0.1):
            tick += 1
            wave = 1 + 0.35 * math.sin(tick / 60) + random.uniform(-0.12, 0.12)
            count = round(self._rate * wave / 10)
            batch = [
                packets.publish(f"plant/truck-{number % TRUCKS:03d}/telemetry", reading(number % TRUCKS, tick))
                for number in range(count)
            ]
            batch += [packets.publish(f"plant/truck-{n:03d}/position", b"52.5200,13.4050") for n in range(count // 6)]
            batch += [packets.publish("plant/truck-003/control", b'{"gate":"open"}')] * (tick % 4 == 0)
            self._client.send(b"".join(batch))

    def end(self) -> None:
        self._ended.set()
        self.join()
        self._client.close()


class Reader(threading.Thread):
    """A subscriber that reads as fast as it can, or at about `bytes_a_second`."""

    def __init__(self, port: int, name: str, topic_filter: str, bytes_a_second: float | None = None) -> None:
        super().__init__(daemon=True)
        self._client = RawClient.connected(port, name, clean=False)
        self._client.subscribe((topic_filter, 0))
        self._client.socket.settimeout(0.2)
        self._pause_s = 0.0 if bytes_a_second is None else 16_384 / bytes_a_second
        self._ended = threading.Event()

    def run(self) -> None:
        pinged = time.monotonic()
        while not self._ended.wait(self._pause_s):
            if time.monotonic() - pinged > 20:
                pinged = time.monotonic()
                self._client.send(packets.PINGREQ)
            with contextlib.suppress(TimeoutError):
                if not self._client.socket.recv(16_384 if self._pause_s else 1 << 20):
                    return

    def end(self) -> None:
        self._ended.set()
        self.join()
        self._client.close()


@contextlib.contextmanager
def running(*threads: Plant | Reader) -> Iterator[None]:
    for thread in threads:
        thread.start()
    yield
    for thread in threads:
        thread.end()


def photograph(
    port: int, name: str, *, dark: bool = False, path: str = "", watch_s: float = 4.0, height: int = 1080
) -> None:
    """Watch a page for some seconds, then keep what it shows."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=sandbox)
        viewport = {"width": 390, "height": height} if name.endswith("phone") else {"width": 1280, "height": height}
        page = browser.new_page(viewport=viewport, color_scheme="dark" if dark else "light")
        page.goto(f"http://127.0.0.1:{port}/{path}")
        if path:
            page.fill("#topic", "plant/truck-003/telemetry")
            page.fill("#from", "-400")
            page.click("#replay button")
        page.wait_for_timeout(watch_s * 1000)
        page.screenshot(path=TARGET / f"{name}.png")
        browser.close()


def idle_load_and_catching_up(directory: Path) -> None:
    port = free_port()
    with BrokerProcess(directory, topics=TOPICS, http={"port": port}) as broker:
        publish_all(broker.port, "plant/truck-001/telemetry", [reading(1, tick) for tick in range(4000)])
        publish_all(broker.port, "plant/truck-001/control", [b'{"gate":"closed"}'] * 40)
        readers = [
            Reader(broker.port, "control-room", "plant/#"),
            Reader(broker.port, "archive", "plant/+/telemetry"),
            Reader(broker.port, "alarms", "plant/+/control"),
        ]
        with running(*readers):
            time.sleep(20)  # what the picture shows: that long of nothing
            photograph(port, "idle")
            with running(Plant(broker.port, 2500)):
                time.sleep(WARM_UP_S / 2)  # and that long of load
                photograph(port, "load", dark=True, watch_s=WARM_UP_S)
                photograph(port, "load-phone", dark=True, watch_s=20, height=844)
                photograph(port, "topic", path="#/log/telemetry", height=900)
                slow = Reader(broker.port, "historian", "$replay/earliest/plant/+/telemetry", 1_600_000)
                with running(slow):
                    photograph(port, "catching-up", watch_s=9)


def attention(directory: Path) -> None:
    """A damaged range, a certificate that ends soon, and a reload that was refused."""
    port = free_port()
    issued = Authority(directory).ending(5.5)
    listeners = {
        "secure": {"port": free_port(), "tls": {"certfile": str(issued.certfile), "keyfile": str(issued.keyfile)}}
    }
    broker = BrokerProcess(directory, topics=TOPICS, http={"port": port})
    listeners["local"] = {"port": broker.port}
    broker.write_config({"topics": TOPICS, "http": {"port": port}, "listeners": listeners})
    broker.start()
    publish_all(broker.port, "plant/truck-001/telemetry", [os.urandom(200) for _ in range(20_000)])
    broker.stop()
    (segment,) = (broker.data / "logs").glob("telemetry-*/*.log")
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 1
    segment.write_bytes(data)
    with broker, running(Reader(broker.port, "historian", "$replay/earliest/plant/#"), Plant(broker.port, 300)):
        time.sleep(30)  # and that long of before the fault
        faulty = [*TOPICS, {"topic": "plant/#/telemetry", "log": "more"}]
        broker.write_config({"topics": faulty, "http": {"port": port}, "listeners": listeners})
        assert broker.process is not None
        broker.process.send_signal(signal.SIGHUP)
        photograph(port, "attention", watch_s=20)


def main() -> None:
    TARGET.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="highway-") as folder:
        for scene in (idle_load_and_catching_up, attention):
            directory = Path(folder) / scene.__name__
            directory.mkdir()
            scene(directory)
    for picture in sorted(TARGET.glob("*.png")):
        sys.stdout.write(f"{picture.name}: {picture.stat().st_size // 1000} kB\n")


if __name__ == "__main__":
    main()
