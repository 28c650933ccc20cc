"""What must not harm the broker: malformed packets, bad configuration, a data directory that is no use or torn."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

import pytest

from highway.storage.disk.layout import encode_format
from tests.harness import packets
from tests.harness.broker_process import BrokerProcess, wait_until
from tests.harness.ledger import Stored
from tests.harness.log_reader import log_range, parse_log_topic, read_log
from tests.harness.publisher import publish_all
from tests.harness.raw_client import RawClient

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

# Sent by a connected client. The statement of the specification stands where there is one.
MALFORMED = {
    "packet type 0": "0000",
    "packet type 15": "f000",
    "a second CONNECT [MQTT-3.1.0-2]": packets.connect("again").hex(),
    "CONNACK from a client": "20020000",
    "SUBACK from a client": "9003000100",
    "PINGRESP from a client": "d000",
    "remaining length of five bytes": "30ffffffff01",
    "PUBLISH with QoS 3 [MQTT-3.3.1-4]": "3606000161000178",
    "PUBLISH QoS 0 with DUP [MQTT-3.3.1-2]": "380400016178",
    "PUBLISH shorter than its topic": "3003000561",
    "PUBLISH QoS 1 without packet id": "3203000161",
    "PUBLISH to a wildcard [MQTT-3.3.2-2]": packets.publish("mal/#", b"x").hex(),
    "PUBREL flags [MQTT-3.6.1-1]": "60020001",
    "PUBACK flags [MQTT-2.2.2-2]": "41020001",
    "PUBACK too short": "400100",
    "PUBACK too long": "4003000100",
    "SUBSCRIBE flags [MQTT-3.8.1-1]": "8006000100016100",
    "SUBSCRIBE without filters [MQTT-3.8.3-3]": "82020001",
    "SUBSCRIBE QoS 3 [MQTT-3.8.3-4]": "8206000100016103",
    "SUBSCRIBE reserved bits [MQTT-3.8.3-4]": "8206000100016180",
    "SUBSCRIBE filter longer than the packet": "8206000100096100",
    "UNSUBSCRIBE flags [MQTT-3.10.1-1]": "a0050001000161",
    "UNSUBSCRIBE without filters [MQTT-3.10.3-2]": "a2020001",
    "PINGREQ with a body": "c00100",
    "PINGREQ flags [MQTT-2.2.2-2]": "c100",
    "DISCONNECT with a body": "e00100",
    "DISCONNECT flags [MQTT-3.14.1-1]": "e100",
}


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_packet_closes_is_logged_once_and_stores_nothing(broker: BrokerProcess, case: str) -> None:
    before, mark = log_range(broker.port, "mal/x")["high_watermark"], len(broker.stderr)
    client_id = "mal-" + re.sub(r"\W+", "-", case)
    with broker.client(client_id) as client:
        # What follows in the same segment must not be looked at.
        client.send(bytes.fromhex(MALFORMED[case]) + packets.publish("mal/x", b"after", retain=True))
        assert client.expect_closed() == []
    broker.wait_for_line(re.escape(client_id), since=mark)
    with broker.client("mal-check") as client:
        client.subscribe(("mal/#", 0))
        assert client.waiting_messages() == []
    assert log_range(broker.port, "mal/x")["high_watermark"] == before
    assert len(broker.lines(re.escape(client_id), since=mark)) == 1


MALFORMED_FIRST = {
    "no CONNECT first [MQTT-3.1.0-1]": "c000",
    "PUBLISH first": "3006000361006278",
    "HTTP": b"GET / HTTP/1.1\r\n\r\n".hex(),
    "TLS ClientHello": "1603010200010001fc0303",
    "wrong protocol name": packets.packet(0x10, packets.text("MQTX") + bytes([4, 2, 0, 60]) + packets.text("a")).hex(),
    "CONNECT reserved flag [MQTT-3.1.2-3]": "100d00044d51545404030000000161",
    "CONNECT flags in the first byte": "110d00044d51545404020000000161",
    "will QoS 3 [MQTT-3.1.2-14]": "100d00044d515454041e0000000161",
    "will QoS without will [MQTT-3.1.2-13]": "100d00044d515454040a0000000161",
    "will retain without will [MQTT-3.1.2-15]": "100d00044d51545404220000000161",
    "password without user name [MQTT-3.1.2-22]": "101000044d51545404420000000161000170",
    "CONNECT longer than its fields": "100e00044d5154540402000000016100",
    "CONNECT cut short": "100b00044d5154540402000000",
    "a CONNECT of 200 MB": "10ffffff5f",
}


@pytest.mark.parametrize("case", MALFORMED_FIRST)
def test_a_malformed_first_packet_closes_without_a_session(broker: BrokerProcess, case: str) -> None:
    mark = len(broker.stderr)
    with RawClient(broker.port) as client:
        port = client.socket.getsockname()[1]
        client.send(MALFORMED_FIRST[case])
        seen = client.expect_closed()
        assert all(first_byte == 0x20 and body[1] != 0 for first_byte, body in seen)
    broker.wait_for_line(f":{port}\\b", since=mark)
    assert len(broker.lines(f":{port}\\b", since=mark)) == 1


def test_an_unknown_protocol_level_is_answered_with_return_code_1(broker: BrokerProcess) -> None:
    with RawClient(broker.port) as client:
        client.send("100d00044d51545403020000000161")
        client.expect_bytes("20020001")  # [MQTT-3.1.2-2]
        client.expect_closed()


def test_a_packet_over_the_limit_closes_before_its_body_is_read(broker: BrokerProcess) -> None:
    with broker.client("too-large") as client:
        client.send(b"\x30" + packets.remaining_length(200 * 1024 * 1024) + b"\0\1a")
        client.expect_closed()
    rss = broker.rss_bytes()
    with broker.client("too-large") as client:
        client.send(b"\x30" + packets.remaining_length(2 * 1024 * 1024) + b"\0\1a")
        client.expect_closed()
    assert broker.rss_bytes() - rss < 10 * 1024 * 1024


def test_the_faults_of_others_do_not_disturb_a_client(broker: BrokerProcess) -> None:
    with broker.client("steady") as steady, broker.client("steady-publisher") as publisher:
        steady.subscribe(("steady/#", 1))
        for case in MALFORMED.values():
            RawClient(broker.port).send(case)
            with broker.client("faulty") as faulty:
                faulty.send(case)
        publisher.publish("steady/x", b"undisturbed")
        assert steady.message().payload == b"undisturbed"


def test_a_directory_in_use_is_refused_with_the_pid_of_its_user(own_broker: BrokerProcess) -> None:
    own_broker.start()
    assert own_broker.process is not None
    pid = own_broker.process.pid
    second = BrokerProcess(own_broker.directory)
    second.spawn()
    assert second.wait() == 1
    assert str(pid) in "\n".join(second.stderr)
    with own_broker.client("first-still-works") as client:
        client.publish("safe/x", b"x")


def test_after_a_kill_the_directory_is_free_at_once(own_broker: BrokerProcess) -> None:
    own_broker.start()
    for _ in range(3):
        own_broker.restart()


def test_a_newer_format_is_refused_and_nothing_touched(own_broker: BrokerProcess) -> None:
    own_broker.start()
    own_broker.stop()
    (own_broker.data / "FORMAT").write_bytes(encode_format(99))
    before = contents(own_broker.data)
    own_broker.spawn()
    assert own_broker.wait() == 1
    assert "99" in own_broker.stderr[-1] + own_broker.stderr[-2]
    after = contents(own_broker.data)
    assert {path: data for path, data in after.items() if path != "LOCK"} == {
        path: data for path, data in before.items() if path != "LOCK"
    }


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_a_data_directory_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file where the directory should be")
    broker = BrokerProcess(tmp_path)
    broker.spawn()
    assert broker.wait() == 1
    assert str(tmp_path / "data") in "\n".join(broker.stderr)
    assert "Traceback" not in "\n".join(broker.stderr)


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes where the mode forbids it")
def test_a_directory_without_write_permission_is_refused(tmp_path: Path) -> None:
    tmp_path.joinpath("data").mkdir(mode=0o500)
    broker = BrokerProcess(tmp_path)
    broker.spawn()
    assert broker.wait() == 1
    assert "can't be written" in "\n".join(broker.stderr)


def test_a_port_in_use_is_refused(own_broker: BrokerProcess, tmp_path: Path) -> None:
    own_broker.start()
    second = BrokerProcess(tmp_path)
    second.port = own_broker.port
    second.write_config({})
    second.spawn()
    assert second.wait() == 1
    text = "\n".join(second.stderr)
    assert str(own_broker.port) in text
    assert "Traceback" not in text


BAD_YAML = """\
listeners:
  local: {bind: 127.0.0.1, port: 99999}
topics:
  - {topic: a/#, log: a, durabilty: SAFE}
  - {topic: b/#, log: b, retention: 7}
  - {topic: c/#/d, log: c}
  - topic: #
    log: d
"""


def test_a_bad_configuration_shows_every_error_with_its_line_and_starts_nothing(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path)
    broker.config.write_text(f"data_dir: {broker.data}\n" + BAD_YAML)
    broker.spawn()
    assert broker.wait() == 2
    lines = [match[1] for line in broker.stderr if (match := re.search(r"highway\.yaml:(\d+):\d+:", line))]
    assert set(lines) >= {"3", "5", "6", "7", "8"}
    assert not broker.data.exists()


# What a disk does to a log. Segments are made small, and the payloads incompressible, so that there are many.
DAMAGE_TOPICS = [
    {"topic": "dmg/#", "log": "dmg", "segment_bytes": "64KiB", "flush_bytes": "16KiB"},
    {"topic": "safe/#", "log": "safe", "durability": "SAFE"},
]


def broker_with_segments(directory: Path) -> tuple[BrokerProcess, list[Stored]]:
    """A stopped broker whose log `dmg` has several segments, and what it holds."""
    broker = BrokerProcess(directory, topics=DAMAGE_TOPICS)
    with broker:
        publish_all(broker.port, "dmg/x", [b"%d " % number + os.urandom(500).hex().encode() for number in range(1000)])
        with broker.client("keeps", clean=False) as client:
            client.subscribe(("safe/#", 1))
            client.publish("safe/kept", b"kept", retain=True)
            client.messages(1)
            client.disconnect()
        records = read_all(broker)
        # The mark of that reading may open a new segment; these make the last one worth damaging.
        last = [b"%d last" % number for number in range(50)]
        publish_all(broker.port, "dmg/x", last)
        base = log_range(broker.port, "dmg/x")["high_watermark"] - len(last)
        return broker, records + [Stored(base + place, "dmg/x", payload) for place, payload in enumerate(last)]


def read_all(broker: BrokerProcess) -> list[Stored]:
    return read_log(broker.port, "dmg/#")


def segments(broker: BrokerProcess) -> list[Path]:
    (folder,) = (path for path in (broker.data / "logs").iterdir() if path.name.startswith("dmg-"))
    return sorted(folder.glob("*.log"))


def overwrite(path: Path, start: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(start)
        file.write(data)


def flip_in_the_middle(broker: BrokerProcess) -> None:
    path = segments(broker)[0]
    middle = path.stat().st_size // 2
    overwrite(path, middle, bytes([path.read_bytes()[middle] ^ 0xFF]))


def zero_a_whole_segment(broker: BrokerProcess) -> None:
    path = segments(broker)[1]
    overwrite(path, 0, bytes(path.stat().st_size))


def zero_the_tail_of_the_last(broker: BrokerProcess) -> None:
    path = segments(broker)[-1]
    size = path.stat().st_size
    overwrite(path, size - size // 3, bytes(size // 3))


def truncate_a_segment(broker: BrokerProcess) -> None:
    path = segments(broker)[1]
    os.truncate(path, path.stat().st_size // 2)


def delete_a_segment(broker: BrokerProcess) -> None:
    segments(broker)[1].unlink()


DAMAGE: dict[str, Callable[[BrokerProcess], None]] = {
    "a flipped byte": flip_in_the_middle,
    "a segment of zeros": zero_a_whole_segment,
    "a tail of zeros": zero_the_tail_of_the_last,
    "a segment cut in half": truncate_a_segment,
    "a segment that is gone": delete_a_segment,
}


@pytest.mark.parametrize("case", DAMAGE)
def test_a_damaged_segment_costs_its_range_only_and_is_reported(tmp_path: Path, case: str) -> None:
    broker, before = broker_with_segments(tmp_path)
    assert len(segments(broker)) >= 3
    DAMAGE[case](broker)
    mark = len(broker.stderr)
    with broker:
        after = read_all(broker)
        assert set(after) < set(before), "nothing may be missing, or something was made up"
        assert [record.offset for record in after] == sorted(record.offset for record in after)
        missing = sorted({record.offset for record in before} - {record.offset for record in after})
        reported_exactly(broker, missing, after, mark)
        with broker.client("fetches") as client:
            assert client.subscribe((f"$fetch/{missing[0]}/dmg/x", 0)) == [0x80]
            assert client.subscribe((f"$fetch/{after[0].offset}/dmg/x", 0)) == [0]
            assert client.message().payload == after[0].payload
        publish_all(broker.port, "dmg/x", [b"new"])
        assert read_log(broker.port, "dmg/#", start=str(before[-1].offset + 1))[-1].payload == b"new"


def reported_exactly(broker: BrokerProcess, missing: list[int], survivors: list[Stored], mark: int) -> None:
    """The ranges on stderr hold every missing offset, and none that survived."""
    assert missing
    wait_until(lambda: set(missing) <= reported(broker, mark), what=f"a report of {missing[0]} to {missing[-1]}")
    wrong = reported(broker, mark).intersection(record.offset for record in survivors)
    assert not wrong, "reported, and there:\n" + "\n".join(broker.stderr[mark:])


def reported(broker: BrokerProcess, mark: int) -> set[int]:
    offsets: set[int] = set()
    for line in broker.lines(r"log '?dmg'?", since=mark):
        for first, last in re.findall(r"offsets (\d+) to (\d+)", line):
            offsets.update(range(int(first), int(last) + 1))
    return offsets


def damage_indexes(broker: BrokerProcess) -> None:
    for path in broker.data.rglob("*.idx"):
        overwrite(path, 0, os.urandom(path.stat().st_size))


def delete_indexes(broker: BrokerProcess) -> None:
    for path in broker.data.rglob("*.idx"):
        path.unlink()


def strew_files(broker: BrokerProcess) -> None:
    for folder in (broker.data, *(path for path in broker.data.rglob("*") if path.is_dir())):
        (folder / "stray.tmp").write_bytes(b"half")
        (folder / "README").write_bytes(b"put here by somebody")


def damage_one_checkpoint(broker: BrokerProcess) -> None:
    newest = max(broker.data.glob("CHECKPOINT.*"), key=lambda path: path.stat().st_mtime_ns)
    overwrite(newest, 0, bytes(newest.stat().st_size))


HARMLESS: dict[str, Callable[[BrokerProcess], None]] = {
    "damaged indexes": damage_indexes,
    "no indexes": delete_indexes,
    "strange files": strew_files,
    "one checkpoint slot of zeros": damage_one_checkpoint,
}


@pytest.mark.parametrize("case", HARMLESS)
def test_damage_to_what_can_be_rebuilt_costs_nothing(tmp_path: Path, case: str) -> None:
    broker, before = broker_with_segments(tmp_path)
    HARMLESS[case](broker)
    with broker:
        assert read_all(broker) == before
        with broker.client("keeps", clean=False) as client:
            assert client.session_present


def test_a_flipped_byte_in_the_synced_journal_costs_its_range_only(tmp_path: Path) -> None:
    storage: dict[str, Any] = {"checkpoint_interval": "1h", "checkpoint_bytes": "1GiB"}
    broker = BrokerProcess(tmp_path, topics=[{"topic": "dmg/#", "log": "dmg", "durability": "SAFE"}], storage=storage)
    broker.start()
    with broker.client("one-by-one") as client:  # each in a frame of its own, as each is acknowledged before the next
        for number in range(50):
            client.publish("dmg/x", b"%d " % number + bytes(100))
    before = read_all(broker)
    broker.kill()
    journal = max((broker.data / "journal").glob("*.wal"), key=lambda path: path.read_bytes().count(b"dmg/x"))
    data = journal.read_bytes()
    overwrite(journal, data.index(b"dmg/x25 " + bytes(100)), b"DMG")
    mark = len(broker.stderr)
    with broker:
        after = read_all(broker)
        assert set(after) <= set(before)
        missing = sorted({record.offset for record in before} - {record.offset for record in after})
        assert missing == [25], "the damaged frame, and not what came after it"
        reported_exactly(broker, missing, after, mark)


def test_a_torn_journal_tail_is_cut_quietly(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, topics=DAMAGE_TOPICS)
    broker.start()
    publish_all(broker.port, "dmg/x", [b"%d" % number for number in range(10)])
    before = read_all(broker)
    broker.kill()
    with broker:
        assert read_all(broker) == before
        with broker.client("log") as client:
            client.subscribe(("$log/earliest/dmg/x", 0))
            message = client.message()
            assert parse_log_topic(message.topic, message.payload) == before[0]
