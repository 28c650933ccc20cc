"""Reloads of a real broker: planned, all or nothing, and nobody notices who isn't concerned."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import signal
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from highway.cli import main
from highway.config.certificates import certificate_end
from highway.config.models import TlsSettings
from tests.harness import packets
from tests.harness.broker_process import BrokerProcess, free_port, wait_until
from tests.harness.http import request
from tests.harness.ledger import Ledger
from tests.harness.publisher import Publisher
from tests.harness.raw_client import RawClient

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator

    from tests.harness.certificates import Authority

TOPICS = [
    {"topic": "keep/#", "log": "keep", "durability": "BALANCED", "retention": "30d"},
    {"topic": "safe/#", "log": "safe", "durability": "SAFE"},
]


class Reloadable(BrokerProcess):
    """A broker whose file is edited while it runs."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        self.settings: dict[str, Any] = {"topics": TOPICS, "storage": {"checkpoint_interval": "1h"}, **settings}
        super().__init__(directory, **self.settings)

    def edit(self, **settings: Any) -> None:
        self.settings |= settings
        self.write_config(self.settings)

    def run(self, *words: str) -> tuple[int, str, str]:
        """Exit code, standard output and standard error of a command, run in this process."""
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
            code = main.run(words)
        return code, out.getvalue(), err.getvalue()

    def reload(self, *options: str) -> tuple[int, str, str]:
        return self.run("reload", "--data-dir", str(self.data), *options)

    def status(self) -> dict[str, Any]:
        code, out, err = self.run("status", "--json", "--data-dir", str(self.data))
        assert code == 0, err
        found: dict[str, Any] = json.loads(out)
        return found

    def publish(self, topic: str, *payloads: bytes) -> None:
        with self.client("publisher") as client:
            for payload in payloads:
                client.publish(topic, payload)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Reloadable]:
    process = Reloadable(tmp_path)
    yield process
    if process.process is not None:
        process.kill()


def test_a_reload_counts_at_once_and_disconnects_nobody(broker: Reloadable) -> None:
    with broker, broker.client("subscriber", clean=False) as subscriber:
        subscriber.subscribe(("#", 0))
        broker.publish("new/x", b"1")
        broker.edit(
            topics=[{"topic": "new/#", "log": "new", "durability": "SAFE"}, {**TOPICS[0], "durability": "FAST"}],
            logging={"level": "debug"},
            limits={"max_subscriptions": 5},
        )
        code, out, err = broker.reload()
        assert (code, err) == (0, "in force\n")
        assert out.splitlines() == [
            "topics.keep: durability BALANCED -> FAST for new appends",
            "topics.safe: removed: the log takes no more messages; it can be read, and nothing of it is deleted",
            "topics.new: added: new/# is kept as SAFE",
            "limits.max_subscriptions: 10000 -> 5",
            "logging.level: info -> debug",
        ]
        broker.publish("new/x", b"2")
        assert [subscriber.message().payload for _ in range(2)] == [b"1", b"2"]
        assert broker.reload() == (0, "", "nothing has changed\n")
        logs = {
            log["log"]: log
            for log in map(json.loads, broker.run("topics", "--json", "-c", str(broker.config))[1].splitlines())
        }
        assert (logs["new"]["durability"], logs["new"]["high_watermark"]) == ("SAFE", 1)
        assert logs["keep"]["durability"] == "FAST"
        assert logs["safe"]["topics"] == []


def many_segments(broker: Reloadable) -> int:
    """Old messages in several segments of the log `keep`; returns the offset behind them."""
    broker.edit(topics=[{**TOPICS[0], "segment_bytes": "64KiB", "flush_bytes": "16KiB", "compression": "none"}])
    assert broker.reload()[0] == 0
    for _ in range(40):
        broker.publish("keep/x", *[bytes(1000)] * 10)

    def size() -> int:
        return sum(path.stat().st_size for path in broker.data.glob("logs/keep*/*.log"))

    # Less than a frame stays in memory, and until the next checkpoint, which is far, nothing else moves.
    wait_until(lambda: size() > 400 * 1000 - 20 * 1024, what="the segments")
    return 400


def test_what_a_plan_deletes_is_named_and_refused_until_it_is_allowed(broker: Reloadable) -> None:
    with broker:
        end = many_segments(broker)
        kept = broker.settings["topics"][0]
        broker.edit(topics=[{**kept, "retention_bytes": "128KiB"}])
        code, planned, _ = broker.run("config", "diff", "--data-dir", str(broker.data))
        assert code == 0
        first, until = map(int, planned.rpartition("offsets ")[2].split(".."))
        assert first == 0 < until < end
        assert planned.startswith("topics.keep: retention_bytes unlimited -> 128KiB: deletes ")
        code, out, err = broker.reload()
        assert (code, out) == (6, "")
        assert planned.strip() in err
        assert "--allow-trim" in err
        assert broker.run("retention", "plan", "--data-dir", str(broker.data)) == (0, "", "nothing to delete\n")
        assert "would delete" in broker.status()["configuration"]["reload_error"]
        code, out, _ = broker.reload("--allow-trim")
        assert (code, out) == (0, planned)

        def log_start() -> int:
            found = broker.run("topics", "--json", "--data-dir", str(broker.data))[1].splitlines()
            return next(log["log_start_offset"] for log in map(json.loads, found) if log["log"] == "keep")

        wait_until(lambda: log_start() == until + 1, what="the deletion that was planned")
        assert broker.status()["configuration"]["reload_error"] is None


@pytest.mark.parametrize("name", ["keep", "safe"])
def test_to_compact_a_log_that_holds_something_is_refused_until_it_is_allowed(broker: Reloadable, name: str) -> None:
    with broker:
        broker.publish("keep/x", b"1", b"2")
        broker.edit(topics=[entry | ({"cleanup": "compact"} if entry["log"] == name else {}) for entry in TOPICS])
        code, _, err = broker.reload()
        if name == "safe":  # which is empty
            assert code == 0
            return
        assert code == 6
        assert "topics.keep: cleanup delete -> compact" in err
        assert broker.reload("--allow-trim")[0] == 0


def test_a_log_that_is_listed_again_is_not_compacted_unasked(broker: Reloadable) -> None:
    with broker:
        broker.publish("keep/x", b"1", b"2")
        broker.edit(topics=[TOPICS[1]])
        assert broker.reload()[0] == 0
        broker.edit(topics=[{**TOPICS[0], "cleanup": "compact"}, TOPICS[1]])
        assert broker.reload()[0] == 6


def test_trim_by_hand_deletes_what_its_plan_says_and_asks_first(broker: Reloadable) -> None:
    with broker:
        many_segments(broker)
        place = ("--data-dir", str(broker.data))
        code, planned, _ = broker.run("retention", "plan", "keep", "--before", "200", "--json", *place)
        assert code == 0
        code, out, err = broker.run("retention", "trim", "keep", "--before", "200", "--json", *place)
        assert (code, out) == (6, planned)
        assert "--apply does it" in err
        assert broker.run("retention", "trim", "keep", "--before", "200", "--apply", "--json", *place)[:2] == (
            0,
            planned,
        )
        until = json.loads(planned)["to_offset"]
        code, out, _ = broker.run("tail", "keep", "--from", "earliest", "-C", "1", "--json", *place)
        assert (code, json.loads(out)["offset"]) == (0, until)
        assert broker.run("retention", "plan", "nope", *place)[0] == 3


BAD = {
    "a syntax error": ("topics: [{topic: a, \n", 2),
    "an unknown key": ("nope: 1\n", 2),
    "a bad filter": ("topics: [{topic: ie#}]\n", 2),
    "an empty file": ("", 2),
    "a listener that is taken": (None, 1),
    "no file": (None, 2),
}


@pytest.mark.parametrize("way", ["command", "signal"])
def test_a_reload_that_fails_changes_nothing_and_is_told_everywhere(
    broker: Reloadable, way: str, tmp_path: Path
) -> None:
    broker.edit(auth={"anonymous": True, "acl": [{"allow": ["publish", "subscribe"], "topic": "keep/#"}]})
    good = broker.config.read_text()
    with broker, broker.client("subscriber") as subscriber, socket.create_server(("127.0.0.1", 0)) as other:
        subscriber.subscribe(("keep/#", 0))
        there = {"bind": "127.0.0.1", "port": broker.port}
        taken = {"bind": "127.0.0.1", "port": other.getsockname()[1]}
        free = free_port()
        for case, (text, expected) in BAD.items():
            mark = len(broker.stderr)
            if case == "a listener that is taken":
                broker.edit(
                    listeners={"local": there, "first": {"port": free}, "second": taken},
                    topics=[{"topic": "other/#", "log": "second"}],
                    auth={"anonymous": True},
                )
            elif text is None:
                broker.config.unlink()
            else:
                broker.config.write_text(text)
            if way == "command":
                code, out, err = broker.reload()
                assert (code, out) == (expected, ""), case
                assert err
            else:
                assert broker.process is not None
                broker.process.send_signal(signal.SIGHUP)
                broker.wait_for_line("reload failed: the configuration before it stays in force", since=mark)
            assert broker.status()["configuration"]["reload_error"], case
            # The rules are what they were, and so are listeners and logs.
            assert not _is_open(free)
            with broker.client("another") as another:
                assert another.subscribe(("safe/x", 0)) == [0x80], case
            broker.publish("keep/x", case.encode())
            assert subscriber.message().payload == case.encode()
            assert "second" not in broker.run("topics", "--data-dir", str(broker.data))[1]
            broker.config.write_text(good)
            assert broker.reload() == (0, "", "nothing has changed\n"), case
            assert broker.status()["configuration"]["reload_error"] is None


def test_a_broker_whose_file_became_wrong_is_still_found_by_it(broker: Reloadable) -> None:
    with broker:
        broker.edit(limits={"max_packet": 100})
        code, out, err = broker.run("reload", "-c", str(broker.config))
        assert (code, out) == (2, "")
        assert "limits.max_packet: 100 has no unit" in err
        code, out, err = broker.run("status", "--json", "-c", str(broker.config))
        assert (code, err) == (0, "")
        assert "has no unit" in str(json.loads(out)["configuration"]["reload_error"])


def _is_open(port: int) -> bool:
    try:
        with RawClient(port):
            return True
    except OSError:
        return False


def test_a_signal_reloads_and_a_good_reload_ends_the_complaint(broker: Reloadable) -> None:
    with broker:
        assert broker.process is not None
        broker.config.write_text("nope: 1\n")
        broker.process.send_signal(signal.SIGHUP)
        broker.wait_for_line("ERROR highway.server: reload failed: .*highway.yaml:1:1: nope: unknown key")
        broker.edit(limits={"max_connections": 7})
        broker.process.send_signal(signal.SIGHUP)
        broker.wait_for_line("reload: limits.max_connections: 10000 -> 7")
        wait_until(lambda: broker.status()["configuration"]["reload_error"] is None)
        good = yaml.safe_load((broker.data / "last-good.yaml").read_text())
        assert good["limits"]["max_connections"] == 7


def test_the_last_good_copy_is_a_configuration_that_says_the_same(broker: Reloadable) -> None:
    with broker:
        wait_until((broker.data / "last-good.yaml").exists)
        copy = broker.data / "last-good.yaml"
        assert copy.stat().st_mode & 0o777 == 0o600
        code, out, err = broker.run("config", "diff", str(copy), "--against", str(broker.config))
        assert (code, out, err) == (0, "", "nothing would change\n")


def test_the_last_good_copy_is_written_only_where_it_says_something_else(broker: Reloadable) -> None:
    copy = broker.data / "last-good.yaml"

    def reloaded() -> int:
        assert broker.reload()[0] == 0
        return copy.stat().st_ino

    with broker:
        wait_until(copy.exists)
        first, text = os.open(copy, os.O_RDONLY), copy.read_text()  # what is open keeps its number
        assert reloaded() == os.fstat(first).st_ino
        broker.config.write_text(broker.config.read_text() + "\n# a comment\n")
        assert reloaded() == os.fstat(first).st_ino
        broker.edit(limits={"max_connections": 7})
        assert reloaded() != os.fstat(first).st_ino
        assert "max_connections: 7" in copy.read_text()
        broker.edit(limits={})
        reloaded()
        assert copy.read_text() == text
        copy.unlink()
        reloaded()
        assert copy.read_text() == text
        os.close(first)


def test_what_needs_a_restart_is_said_and_left(broker: Reloadable) -> None:
    with broker:
        elsewhere = free_port()
        broker.edit(listeners={"local": {"bind": "127.0.0.1", "port": elsewhere}}, limits={"max_connections": 9})
        code, out, _ = broker.reload()
        assert code == 0
        assert out.splitlines() == [
            f"listeners.local.port: {broker.port} -> {elsewhere}: needs a restart",
            "limits.max_connections: 10000 -> 9",
        ]
        with broker.client("still there"):
            pass
        assert broker.status()["configuration"]["needs_restart"] == ["listeners.local.port"]
        assert broker.reload()[1].splitlines() == out.splitlines()[:1], "and said again"


def test_listeners_come_and_go_and_only_theirs_are_disconnected(broker: Reloadable) -> None:
    local = {"bind": "127.0.0.1", "port": broker.port}
    second = {"bind": "127.0.0.1", "port": free_port()}
    with broker, broker.client("stays") as stays:
        broker.edit(listeners={"local": local, "second": second})
        assert broker.reload()[:2] == (0, f"listeners.second: added, on 127.0.0.1 port {second['port']}\n")
        with RawClient.connected(second["port"], "goes") as goes:
            broker.edit(listeners={"local": local})
            assert broker.reload()[0] == 0
            goes.expect_closed()
        assert not _is_open(second["port"])
        stays.ping()
        broker.edit(listeners={"renamed": local})
        assert broker.reload()[:2] == (0, "listeners.renamed: was local; its connections stay\n")
        stays.ping()
        assert _is_open(broker.port)
        broker.edit(listeners={"second": second})
        assert broker.reload()[0] == 0
        stays.expect_closed()


def test_a_certificate_is_renewed_under_the_connections(
    broker: Reloadable, authority: Authority, trusting: ssl.SSLContext, tmp_path: Path
) -> None:
    first, second, expired = authority.server("first"), authority.ending(days=200), authority.expired()
    files = {"certfile": tmp_path / "server.pem", "keyfile": tmp_path / "server.key"}

    def install(certificate: Any) -> None:
        files["certfile"].write_bytes(Path(certificate.certfile).read_bytes())
        files["keyfile"].write_bytes(Path(certificate.keyfile).read_bytes())

    def shown() -> bytes:
        with RawClient(port, tls=trusting) as client:
            found: bytes = client.socket.getpeercert(binary_form=True)  # type: ignore[attr-defined]
            return found

    def expiry() -> float:
        metrics = request(broker.data / "admin.sock", "/metrics").body.decode()
        pattern = r'^highway_certificate_expiry_timestamp_seconds\{listener="secure"\} (.*)$'
        (line,) = re.findall(pattern, metrics, re.MULTILINE)
        return float(line)

    def end_of(certificate: Any) -> float:
        return certificate_end(TlsSettings(certificate.certfile, certificate.keyfile))

    install(first)
    port = free_port()
    tls = {key: str(path) for key, path in files.items()}
    broker.edit(
        listeners={
            "local": {"bind": "127.0.0.1", "port": broker.port},
            "secure": {"bind": "127.0.0.1", "port": port, "tls": tls},
        }
    )
    with broker, RawClient(port, tls=trusting) as before:
        before.login("before")
        old = shown()
        assert expiry() == end_of(first) > end_of(second)
        install(second)
        with socket.create_server(("127.0.0.1", 0)) as other:
            listeners = broker.settings["listeners"]
            broker.edit(listeners={**listeners, "taken": {"port": other.getsockname()[1]}})
            assert broker.reload()[0] == 1
            assert shown() == old, "all or nothing"
            broker.edit(listeners=listeners)
        assert broker.reload()[:2] == (0, "listeners.secure.tls: certificates have changed for new handshakes\n")
        assert shown() != old
        assert expiry() == end_of(second)
        before.ping()
        new = shown()
        install(expired)
        code, _, err = broker.reload()
        assert code == 2
        assert "has expired" in err
        assert shown() == new
        before.ping()


def test_reloads_under_load_lose_nothing_and_disconnect_nobody(broker: Reloadable) -> None:
    before = [{**TOPICS[0], "flush_interval": "50ms"}, TOPICS[1]]
    after = [
        {"topic": "keep/new/#", "log": "new", "durability": "SAFE"},
        {**TOPICS[0], "durability": "FAST", "compression": "none"},
    ]
    with broker, broker.client("subscriber") as subscriber:
        subscriber.subscribe(("keep/#", 0))
        publisher = Publisher(broker.port, "keep/x", Ledger(), window=100)
        publisher.start()
        for number in range(10):
            broker.edit(topics=after if number % 2 else before, limits={"max_connections": 100 + number})
            code, _, err = broker.reload()
            assert code == 0, err
            broker.publish("keep/new/x", b"%d" % number)
        wait_until(lambda: publisher.acked >= 1000, what="a thousand messages under the reloads")
        publisher.stop()
        received = subscriber.messages(publisher.acked + 10, timeout=30)
        assert subscriber.waiting_messages() == []
        new = [message.payload for message in received if message.topic == "keep/new/x"]
        assert sorted(new) == [b"%d" % number for number in range(10)]
        numbers = [int(message.payload.split()[0]) for message in received if message.topic == "keep/x"]
        assert numbers == list(range(numbers[0], numbers[0] + publisher.acked)), "in order, none twice, none missing"


WATCH_S = 1.6  # a file is read once it has rested for so long: a busy machine has half of it to write the other half


def edits(path: Path, old: str, new: str) -> dict[str, Any]:
    """Ways to change a file, each a function that does it."""

    def replaced() -> None:
        other = path.with_suffix(".new")
        other.write_text(new)
        other.replace(path)

    def link_turned() -> None:
        folder = path.parent / "..data-2"
        folder.mkdir()
        (folder / path.name).write_text(new)
        path.unlink()
        path.symlink_to(folder / path.name)

    def in_halves() -> None:
        with path.open("w") as file:
            file.write(new[: len(new) // 2])
            file.flush()
            time.sleep(WATCH_S / 2)  # the half is what is tested: it must not be taken for the whole
            file.write(new[len(new) // 2 :])

    def set_back() -> None:
        before = path.stat()
        assert len(new) == len(old)
        path.write_text(new)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    return {
        "in place": lambda: path.write_text(new),
        "replaced": replaced,
        "link turned": link_turned,
        "in halves": in_halves,
        "time set back": set_back,
    }


@pytest.mark.parametrize("way", ["in place", "replaced", "link turned", "in halves", "time set back"])
def test_a_watched_file_is_noticed_whatever_changed_it_and_is_read_whole(broker: Reloadable, way: str) -> None:
    watch = f"{WATCH_S * 1000:.0f}ms" if way == "in halves" else "300ms"
    broker.edit(reload={"watch": watch}, limits={"max_connections": 111})
    with broker:
        old = broker.config.read_text()
        new = old.replace("111", "222")
        mark = len(broker.stderr)
        edits(broker.config, old, new)[way]()
        broker.wait_for_line("reload: limits.max_connections: 111 -> 222", since=mark)
        assert not broker.lines("reload failed", since=mark)


def test_a_watched_file_that_is_wrong_is_told_once(broker: Reloadable) -> None:
    broker.edit(reload={"watch": "50ms"})
    with broker:
        good = broker.config.read_text()
        edits(broker.config, good, "nope: 1\n")["replaced"]()
        broker.wait_for_line("reload failed: the configuration before it stays in force")
        edits(broker.config, good, good.replace('"50ms"', '"51ms"'))["replaced"]()
        broker.wait_for_line("reload: reload.watch: 50ms -> 51ms")
        assert len(broker.lines("reload failed: the configuration before")) == 1


def test_a_mixture_that_would_stand_open_until_a_restart_is_refused(tmp_path: Path) -> None:
    (tmp_path / "passwd").write_text("")
    (tmp_path / "passwd").chmod(0o600)
    auth = {"anonymous": False, "password_file": str(tmp_path / "passwd")}
    port = free_port()
    with Reloadable(tmp_path, listeners={"local": {"bind": "0.0.0.0", "port": port}}, auth=auth) as broker:
        broker.edit(listeners={"local": {"bind": "127.0.0.1", "port": port}}, auth={"anonymous": True})
        code, out, err = broker.reload()
        assert (code, out) == (6, "")
        assert "anybody on the network could connect at local until the restart that it needs" in err
        with RawClient(port) as client:
            client.send(packets.connect("anybody"))
            assert client.expect(0x20)[1] == 5
