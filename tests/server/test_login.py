"""Who is let in: passwords, certificates and nobody in particular; and that a stranger changes nothing."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
import time
from typing import TYPE_CHECKING, Any

import pytest

from highway.broker.authentication import Login
from highway.config.passwords import change_password_file, hash_password, load_passwords
from highway.server.access.hashing import PasswordChecks
from tests.harness import packets, packets5
from tests.harness.broker_process import BrokerProcess
from tests.harness.certificates import Authority
from tests.harness.raw_client import CONNACK, RawClient
from tests.harness.timing import least, timed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

USERS = {"alice": b"wonderland", "bob": b"builder", "sensor-1": b"in case it has no certificate"}


@pytest.fixture(scope="module")
def password_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("users") / "passwd"
    for name, password in USERS.items():
        change_password_file(path, name, hash_password(password))
    return path


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, password_file: Path) -> Iterator[BrokerProcess]:
    process = BrokerProcess(
        tmp_path_factory.mktemp("login"),
        topics=[{"topic": "#", "log": "all", "durability": "BALANCED"}],
        auth={"password_file": str(password_file)},
        limits={"connect_timeout": "5s"},
    )
    with process as running:
        yield running


def refused(port: int, connect: bytes) -> bytes:
    """The body of the CONNACK that a CONNECT is refused with; the connection is closed behind it."""
    with RawClient(port) as client:
        client.send(connect)
        body = client.expect(CONNACK)
        assert client.read_packet() is None
        return body


def test_the_right_password_lets_in(broker: BrokerProcess) -> None:
    for name, password in USERS.items():
        with broker.client(f"right-{name}", username=name, password=password) as client:
            client.ping()


@pytest.mark.parametrize(
    ("username", "password", "code"),
    [
        ("alice", b"builder", 4),
        ("alice", b"", 4),
        ("alice", None, 4),
        ("mallory", b"wonderland", 4),
        ("", b"", 4),
        (None, None, 5),
    ],
)
def test_3_1_1_is_told_4_or_5(broker: BrokerProcess, username: str | None, password: bytes | None, code: int) -> None:
    connect = packets.connect("stranger", username=username, password=password)
    assert refused(broker.port, connect) == bytes((0, code))


def test_mqtt_5_is_told_0x86_or_0x87(broker: BrokerProcess) -> None:
    wrong = packets5.connect("stranger", username="alice", password=b"x")
    assert packets5.parse_connack(CONNACK, refused(broker.port, wrong)).reason_code == 0x86
    nameless = packets5.connect("stranger")
    assert packets5.parse_connack(CONNACK, refused(broker.port, nameless)).reason_code == 0x87


def test_a_wrong_password_has_to_wait_and_the_right_one_meanwhile_does_not(broker: BrokerProcess) -> None:
    with broker.client("warm", username="alice", password=USERS["alice"]):
        pass

    def right_one_s() -> float:
        with RawClient(broker.port) as guesser:
            begin = time.monotonic()
            guesser.send(packets.connect("guess", username="alice", password=b"guess"))
            with broker.client("quick", username="alice", password=USERS["alice"]) as other:
                other.ping()
                took = time.monotonic() - begin
            assert guesser.expect(CONNACK) == b"\0\x04"
            assert time.monotonic() - begin >= 1
        return took

    assert least(right_one_s, below=1) < 1


def test_a_wrong_password_changes_nothing_of_the_victim(broker: BrokerProcess) -> None:
    will = ("victims/will", b"gone", 1, False)
    victim = broker.client("victim", clean=False, username="alice", password=USERS["alice"], will=will)
    with victim, broker.client("watch", username="bob", password=USERS["bob"]) as watch:
        victim.subscribe(("victims/#", 1))
        watch.subscribe(("victims/will", 1))
        for connect in (
            packets.connect("victim", clean=True, username="alice", password=b"guess"),
            packets.connect("victim", clean=False, username="alice"),
            packets.connect("victim", clean=True),
            packets5.connect("victim", clean_start=True, username="mallory", password=b"guess"),
        ):
            refused(broker.port, connect)
        # Another user with a right password of its own is told that the id isn't to be had.
        bob = {"username": "bob", "password": USERS["bob"]}
        assert refused(broker.port, packets.connect("victim", clean=True, **bob)) == b"\0\x02"
        assert (
            packets5.parse_connack(CONNACK, refused(broker.port, packets5.connect("victim", **bob))).reason_code == 0x85
        )
        watch.publish("victims/a", b"1", qos=1)
        assert victim.message().payload == b"1"
        victim.ping()
        assert watch.waiting_messages() == []


def test_a_session_that_is_away_belongs_to_its_user_also_after_a_crash(tmp_path: Path, password_file: Path) -> None:
    with BrokerProcess(tmp_path, auth={"password_file": str(password_file)}) as broker:
        alice = {"username": "alice", "password": USERS["alice"]}
        bob = {"username": "bob", "password": USERS["bob"]}
        with broker.client("mine", clean=False, **alice) as client:
            client.subscribe(("a/#", 1))
        broker.restart()
        assert refused(broker.port, packets.connect("mine", clean=True, **bob)) == b"\0\x02"
        assert refused(broker.port, packets.connect("mine", clean=False, **bob)) == b"\0\x02"
        with broker.client("other", **bob) as other:
            other.publish("a/1", b"kept", qos=1)
        with broker.client("mine", clean=False, **alice) as client:
            assert client.session_present
            assert client.message().payload == b"kept"


def test_sessions_of_the_time_before_passwords_pass_to_who_asks_first(tmp_path: Path, password_file: Path) -> None:
    broker = BrokerProcess(tmp_path)
    with broker:
        with broker.client("old", clean=False) as client:
            client.subscribe(("a/#", 1))
        broker.stop()
        broker.write_config({"topics": [], "auth": {"password_file": str(password_file)}})
        broker.start()
        with broker.client("old", clean=False, username="alice", password=USERS["alice"]) as client:
            assert client.session_present
        assert (
            refused(broker.port, packets.connect("old", clean=False, username="bob", password=USERS["bob"]))
            == b"\0\x02"
        )


def test_what_comes_behind_a_connect_waits_for_who_it_is(broker: BrokerProcess) -> None:
    with broker.client("watch", username="bob", password=USERS["bob"]) as watch:
        watch.subscribe(("hasty/#", 1))
        publish = packets.publish("hasty/a", b"1", qos=1, packet_id=1)
        with RawClient(broker.port) as client:
            client.send(packets.connect("hasty", username="alice", password=USERS["alice"]) + publish + b"\xe0\0")
            assert client.expect(CONNACK) == b"\0\0"
            assert watch.message().payload == b"1"
        # Neither is anything done for who is refused.
        with RawClient(broker.port) as client:
            client.send(packets.connect("hasty", username="alice", password=b"x") + publish)
            assert client.expect(CONNACK) == b"\0\x04"
            assert client.read_packet() is None
        watch.ping()
        assert watch.waiting_messages() == []


def test_a_stranger_can_send_no_more_than_fits_behind_a_connect(broker: BrokerProcess) -> None:
    before = broker.rss_bytes()
    flood = packets.publish("flood", bytes(60_000), qos=0) * 400  # 24 MB
    strangers = [RawClient(broker.port) for _ in range(10)]
    for stranger in strangers:
        stranger.send(packets.connect("flood", username="alice", password=b"x"))
        stranger.socket.setblocking(False)
    sent = 0
    for stranger in strangers:
        try:
            while True:
                sent += stranger.socket.send(flood)
        except (BlockingIOError, ConnectionError):
            pass
    assert broker.rss_bytes() - before < 100 * 1024 * 1024
    for stranger in strangers:
        stranger.close()


def test_connect_timeout_holds_while_a_login_waits(tmp_path: Path, password_file: Path) -> None:
    limits = {"connect_timeout": "500ms"}
    with BrokerProcess(tmp_path, auth={"password_file": str(password_file)}, limits=limits) as broker:

        def closed_after_s() -> float:
            with RawClient(broker.port) as client:
                begin = time.monotonic()
                client.send(packets.connect("late", username="alice", password=b"x"))
                assert client.read_packet() is None
                return time.monotonic() - begin

        assert least(closed_after_s, below=0.95) < 0.95
        broker.wait_for_line("not logged in in time")


def test_a_password_stands_in_no_log(broker: BrokerProcess) -> None:
    refused(broker.port, packets.connect("x", username="alice", password=b"correct-horse"))
    broker.wait_for_line("user 'alice': wrong user name or password")
    assert not broker.lines("correct-horse|wonderland|argon2id")


def test_many_logins_at_once_and_the_loop_turns(broker: BrokerProcess) -> None:
    with broker.client("beat", username="alice", password=USERS["alice"]) as beat:

        def slowest_ping_s() -> float:
            guessers = [RawClient(broker.port) for _ in range(20)]
            for number, guesser in enumerate(guessers):
                guesser.send(packets.connect(f"g{number}", username=f"nobody-{number}", password=b"x"))
            slowest = max(timed(beat.ping) for _ in range(20))
            for guesser in guessers:
                guesser.close()
            return slowest

        assert least(slowest_ping_s, below=1) < 1


def test_a_guesser_holds_up_nobody_but_whom_he_pretends_to_be(password_file: Path) -> None:
    order: list[str] = []

    async def guess_and_log_in() -> None:
        checks = PasswordChecks(load_passwords(password_file), asyncio.get_running_loop())
        answered = asyncio.Event()

        def check(user: str, password: bytes, host: str) -> None:
            def done(right: bool) -> None:  # noqa: FBT001  the answer itself
                order.append(f"{user} {right}")
                if right:
                    answered.set()

            checks.check(Login("c", peer=f"{host}:1"), user, password, done)

        for number in range(40):
            check(f"nobody-{number}", b"x", "192.0.2.1")
            check("alice", b"x", "192.0.2.1")
        check("bob", USERS["bob"], "192.0.2.1")
        await asyncio.wait_for(answered.wait(), 30)
        answered.clear()
        check("alice", USERS["alice"], "198.51.100.1")
        await asyncio.wait_for(answered.wait(), 30)
        checks.close()

    asyncio.run(guess_and_log_in())
    assert len(order) < 40
    assert [name for name in order if name.endswith("True")] == ["bob True", "alice True"]


@pytest.mark.skipif(shutil.which("mosquitto_passwd") is None, reason="mosquitto_passwd is not installed")
def test_files_that_mosquitto_wrote(tmp_path: Path) -> None:
    path = tmp_path / "passwd"
    subprocess.run(["mosquitto_passwd", "-c", "-b", str(path), "seven", "pw7"], check=True)
    subprocess.run(["mosquitto_passwd", "-H", "sha512", "-b", str(path), "six", "pw6"], check=True)
    path.chmod(0o600)
    with BrokerProcess(tmp_path, auth={"password_file": str(path)}) as broker:
        for name, password in (("seven", b"pw7"), ("six", b"pw6")):
            with broker.client(name, username=name, password=password) as client:
                client.ping()
            assert refused(broker.port, packets.connect(name, username=name, password=b"pw")) == b"\0\x04"


def mutual(authority: Authority, port: int, name: str) -> RawClient:
    certificate = authority.client(name)
    context = ssl.create_default_context(cafile=str(authority.cafile))
    context.load_cert_chain(certificate.certfile, certificate.keyfile)
    return RawClient(port, tls=context)


def test_a_certificate_stands_for_user_name_and_password(tmp_path: Path, password_file: Path) -> None:
    authority = Authority(tmp_path)
    server = authority.server()
    tls = {"certfile": str(server.certfile), "keyfile": str(server.keyfile), "cafile": str(authority.cafile)}
    acl = [{"allow": ["publish", "subscribe"], "topic": "of/%u"}]
    process = BrokerProcess(tmp_path, auth={"password_file": str(password_file), "acl": acl})
    process.write_config(
        {
            "topics": [],
            "auth": {"password_file": str(password_file), "acl": acl},
            "listeners": {"local": {"port": process.port, "tls": {**tls, "require_certificate": True}}},
        }
    )
    with process:
        with mutual(authority, process.port, "sensor-1") as client:
            client.login("c")
            assert client.subscribe(("of/sensor-1", 1), ("of/alice", 1)) == [1, 0x80]
        with mutual(authority, process.port, "sensor-1") as client:
            client.login("c2", username="sensor-1")
        with mutual(authority, process.port, "sensor-1") as client:  # who shows a password is asked for the right one
            client.login("c3", username="alice", password=USERS["alice"])
            assert client.subscribe(("of/alice", 1)) == [1]
        for wrong in ({"username": "alice"}, {"username": "alice", "password": b"x"}):
            with mutual(authority, process.port, "sensor-1") as client:
                client.send(packets.connect("c4", **wrong))
                assert client.expect(CONNACK) == b"\0\x04"


def test_anonymous_clients_beside_users(tmp_path: Path, password_file: Path) -> None:
    auth: dict[str, Any] = {"password_file": str(password_file), "anonymous": True}
    with BrokerProcess(tmp_path, auth=auth) as broker:
        with broker.client("anybody", clean=False) as client:
            client.ping()
        assert refused(broker.port, packets.connect("x", username="alice", password=b"x")) == b"\0\x04"
        # What anybody made stays anybody's while anybody may come.
        connect = packets.connect("anybody", username="alice", password=USERS["alice"])
        assert refused(broker.port, connect) == b"\0\x02"


def test_a_stranger_who_knows_a_client_id_does_not_hold_it_off(tmp_path: Path, password_file: Path) -> None:
    limits = {"reconnect_rate": "2/m", "connect_timeout": "3s"}
    with BrokerProcess(tmp_path, auth={"password_file": str(password_file)}, limits=limits) as broker:
        strangers = [RawClient(broker.port) for _ in range(10)]
        for stranger in strangers:
            stranger.send(packets.connect("victim", username="alice", password=b"x"))
        for stranger in strangers:
            assert stranger.expect(CONNACK) == b"\0\x04"
        with broker.client("victim", username="alice", password=USERS["alice"]) as victim:
            victim.ping()
        assert not broker.lines("held off")
