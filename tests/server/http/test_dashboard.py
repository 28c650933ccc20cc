"""The dashboard in a real Chromium without a screen, against a real broker."""

from __future__ import annotations

import json
import os
import shutil
import signal
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.harness import packets
from tests.harness.broker_process import BrokerProcess, free_port
from tests.harness.publisher import publish_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
TOPICS = [
    {"topic": "plant/#", "log": "plant", "durability": "SAFE"},
    {"topic": "<b>/#", "log": "odd", "durability": "FAST"},
]
WAIT_MS = 15_000
READINGS = [json.dumps({"speed": 80 + number % 7, "gps": {"lat": 52.5}}).encode() for number in range(300)]
# What would run if any of it ever became markup.
HOSTILE = b"<script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>"
HOSTILE_TOPIC = "<b>/<img src=x onerror=window.hacked=1>"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip("no Chromium (Debian: chromium)")
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=sandbox)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def http_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, http_port: int) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("dashboard"), topics=TOPICS, http={"port": http_port}) as process:
        publish_all(process.port, "plant/truck", READINGS)
        yield process


@pytest.fixture
def show(chromium: Browser, http_port: int) -> Iterator[Callable[..., Page]]:
    """Open a page of the dashboard; it must not complain, nor ask anybody else for anything."""
    faults: list[str] = []
    asked: list[str] = []
    contexts = []

    def show(path: str = "", port: int = http_port, **settings: Any) -> Page:
        context = chromium.new_context(viewport=settings.pop("viewport", {"width": 1280, "height": 900}), **settings)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(WAIT_MS)
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("console", lambda line: faults.append(line.text) if line.type == "error" else None)
        page.on("request", lambda request: asked.append(request.url))
        page.goto(f"http://127.0.0.1:{port}/{path}")
        return page

    expect.set_options(timeout=WAIT_MS)
    yield show
    for context in contexts:
        context.close()
    # The browser's own line about an answer of 404 is no fault of the page.
    assert not [fault for fault in faults if "Failed to load resource" not in fault]
    assert all(url.startswith("http://127.0.0.1:") for url in asked)


def test_numbers_move_while_messages_are_published(broker: BrokerProcess, show: Callable[..., Page]) -> None:
    page = show()
    expect(page.locator("#health")).to_have_text("taking messages")
    expect(page.locator("#clients .value")).to_have_text("0")
    expect(page.locator("tr[data-log=plant] td[data-label=Durability]")).to_have_text("SAFE")
    expect(page.locator("#dropped")).not_to_have_class("bad")
    end = page.locator("tr[data-log=plant] td[data-label=End]")
    before = int(end.inner_text().replace(",", ""))
    with broker.client("reader") as reader:
        reader.subscribe(("plant/#", 0))
        expect(page.locator("#clients .value")).to_have_text("1")
        publish_all(broker.port, "plant/pump", [b"%d" % number for number in range(500)])
        expect(end).to_have_text(f"{before + 500:,}")
        expect(page.locator("#in .sub")).to_contain_text("since the start")
        reader.messages(500)
        expect(page.locator("#out .sub")).not_to_have_text("0 since the start")
        expect(page.locator("[data-reader=reader]").first).to_contain_text("live")
    assert page.locator(".chart canvas").count() == 2


def test_a_session_that_is_away_has_a_bar_that_says_how_far(broker: BrokerProcess, show: Callable[..., Page]) -> None:
    with broker.client("sleeper", clean=False) as sleeper:
        sleeper.subscribe(("plant/#", 1))
        sleeper.disconnect()
    publish_all(broker.port, "plant/pump", [b"x"] * 40)
    bar = show().locator("[data-reader=sleeper]")
    expect(bar).to_contain_text("away, 40 behind")
    assert int(bar.locator("[role=progressbar]").get_attribute("aria-valuenow") or 100) < 100


def test_page_of_a_log_follows_replays_and_fetches(broker: BrokerProcess, show: Callable[..., Page]) -> None:
    page = show()
    page.locator("tr[data-log=plant] a").click()
    expect(page.locator("#state")).to_have_text("waiting for the next message")
    publish_all(broker.port, "plant/truck", [b'{"speed": 99.5}'])
    expect(page.locator(".messages tbody tr").first).to_contain_text('{"speed": 99.5}')

    page.fill("#from", "earliest")
    page.fill("#topic", "plant/truck")
    page.click("#replay button")
    expect(page.locator("#state")).to_contain_text("301 replayed, to the end")
    expect(page.locator(".messages tbody tr").last).to_contain_text('"speed": 80')
    expect(page.locator("#plot canvas")).to_be_visible()
    assert page.locator("#field option").all_inner_texts() == ["speed", "gps.lat"]
    expect(page.locator("#last-value")).to_have_text("99.5")

    page.fill("#offset", "5")
    page.click("#fetch button")
    expect(page.locator("#payload")).to_have_text(json.dumps(json.loads(READINGS[5]), indent=2))
    page.click("#hex")
    expect(page.locator("#payload")).to_contain_text("000000  7b 22 73 70 65 65 64 22  3a 20")
    page.fill("#offset", "999999")
    page.click("#fetch button")
    expect(page.locator(".problem")).to_contain_text("There are offsets 0 to")
    page.fill("#from", "soon")
    page.click("#replay button")
    expect(page.locator(".problem")).to_contain_text("soon")


def test_page_of_one_topic(broker: BrokerProcess, show: Callable[..., Page]) -> None:
    page = show("#/log/plant/plant%2Fgate")
    expect(page.locator("#state")).to_have_text("waiting for the next message")
    publish_all(broker.port, "plant/door", [b"other"])
    publish_all(broker.port, "plant/gate", [b"open"])
    expect(page.locator(".messages tbody tr")).to_have_count(1)
    expect(page.locator(".messages tbody tr")).to_contain_text("open")


def test_what_clients_send_is_text_and_nothing_else(broker: BrokerProcess, show: Callable[..., Page]) -> None:
    with broker.client("<img src=x onerror=window.hacked=1>", clean=False) as client:
        client.subscribe(("<b>/#", 0))
        client.send(packets.publish(HOSTILE_TOPIC, HOSTILE))
        client.ping()
        page = show()
        expect(page.locator("tr[data-log=odd]")).to_contain_text("<b>/#")
        expect(page.locator(".reader .name", has_text="<img src=x").first).to_be_visible()
        page = show("#/log/odd")
        page.fill("#from", "earliest")
        page.click("#replay button")
        expect(page.locator(".messages tbody tr").first).to_contain_text(HOSTILE.decode())
        expect(page.locator(".messages tbody tr").first).to_contain_text(HOSTILE_TOPIC)
        page.locator(".messages tbody tr").first.click()
        expect(page.locator("#payload")).to_have_text(HOSTILE.decode())
    assert page.evaluate("window.hacked") is None
    assert page.locator("main img, main script").count() == 0


def test_nothing_may_be_loaded_from_elsewhere(show: Callable[..., Page]) -> None:
    page = show()
    response = page.goto(page.url)
    assert response is not None
    policy = response.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "://" not in policy


@pytest.mark.parametrize("path", ["", "#/log/plant"])
def test_readable_on_a_phone(show: Callable[..., Page], path: str) -> None:
    page = show(path, viewport={"width": 360, "height": 780})
    expect(page.locator("#health")).to_have_text("taking messages")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_light_and_dark(show: Callable[..., Page]) -> None:
    def ground(scheme: str) -> str:
        return str(show(color_scheme=scheme).evaluate("getComputedStyle(document.body).backgroundColor"))

    assert ground("light") != ground("dark")


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    path.write_bytes(data)


def test_attention_list_has_a_damaged_range(tmp_path: Path, show: Callable[..., Page]) -> None:
    port = free_port()
    process = BrokerProcess(tmp_path, topics=TOPICS, http={"port": port}).start()
    publish_all(process.port, "plant/truck", [os.urandom(300) for _ in range(5000)])
    process.stop()
    (segment,) = (process.data / "logs").glob("plant-*/*.log")
    flip(segment)
    with process:
        page = show(port=port)
        expect(page.locator(".calm")).to_be_visible()
        with process.client("reader") as reader:
            reader.subscribe(("$replay/earliest/plant/#", 0))
            damaged = page.locator("li[data-kind=damaged]")
            expect(damaged).to_contain_text("Log plant:")
        expect(page.locator("#health")).to_have_text("needs attention")
        page.goto(f"http://127.0.0.1:{port}/#/log/plant")
        expect(page.locator("#gaps li.error")).to_contain_text("corruption")


def test_attention_list_has_a_failed_reload(tmp_path: Path, show: Callable[..., Page]) -> None:
    port = free_port()
    with BrokerProcess(tmp_path, topics=TOPICS, http={"port": port}) as process:
        page = show(port=port)
        expect(page.locator(".calm")).to_be_visible()
        good = process.config.read_text()
        process.config.write_text("topics: 7\n")
        assert process.process is not None
        process.process.send_signal(signal.SIGHUP)
        expect(page.locator("li[data-kind=reload]")).to_contain_text("topics")
        expect(page.locator("#health")).to_have_text("needs attention")
        told = page.request.get(f"http://127.0.0.1:{port}/readyz").text().splitlines()
        assert told[0] == "ready"
        assert told[1].startswith("degraded: The last reload failed")
        process.config.write_text(good)
        process.process.send_signal(signal.SIGHUP)
        expect(page.locator(".calm")).to_be_visible()


def test_a_broker_that_goes_away_is_seen_and_found_again(tmp_path: Path, show: Callable[..., Page]) -> None:
    port = free_port()
    process = BrokerProcess(tmp_path, topics=TOPICS, http={"port": port}).start()
    page = show(port=port)
    expect(page.locator("#health")).to_have_text("taking messages")
    process.stop()
    expect(page.locator("#health")).to_have_text("no connection")
    with process:
        expect(page.locator("#health")).to_have_text("taking messages")
        expect(page.locator("tr[data-log=plant]")).to_be_visible()


def test_a_token_is_asked_for_once(tmp_path: Path, show: Callable[..., Page]) -> None:
    port = free_port()
    secret = tmp_path / "http-token"
    secret.touch(0o600)
    secret.write_text("a-token-of-24-characters\n")
    with BrokerProcess(tmp_path, topics=TOPICS, http={"port": port, "token": {"file": "http-token"}}):
        page = show(port=port)
        page.fill("input[type=password]", "a-token-of-24-characters")
        page.click("form button")
        expect(page.locator("#health")).to_have_text("taking messages")
        page.locator("tr[data-log=plant] a").click()
        expect(page.locator("#state")).to_have_text("waiting for the next message")


def test_logs_of_one_topic_each_have_pages(tmp_path: Path, show: Callable[..., Page]) -> None:
    port = free_port()
    topics = [{"topic": "car/+/gps", "log": "car", "per_topic": True}]
    with BrokerProcess(tmp_path, topics=topics, http={"port": port}) as process:
        publish_all(process.port, "car/A 1/gps", [b"52.5"])
        page = show(port=port)
        page.locator("tr.log a", has_text="car/A 1/gps").click()
        expect(page.locator("#state")).to_have_text("waiting for the next message")
        publish_all(process.port, "car/A 1/gps", [b"52.6"])
        expect(page.locator(".messages tbody tr").first).to_contain_text("52.6")
        expect(page.locator(".facts")).to_contain_text("0 to 1")
