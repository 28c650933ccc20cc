"""amqtt's plugins, run unchanged: its own, contributed ones, and those of nobody that hang and raise."""

from __future__ import annotations

import asyncio
import ssl
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import jwt
import pytest
from aiohttp import web

from tests.harness import packets, packets5
from tests.harness.broker_process import BrokerProcess, wait_until
from tests.harness.certificates import Authority
from tests.harness.http import request
from tests.harness.raw_client import CONNACK, RawClient
from tests.harness.raw_client5 import RawClient5
from tests.harness.timing import least, timed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DOOR = "tests.harness.plugins.Door"
TOPICS = "tests.harness.plugins.Topics"
EVENTS = "tests.harness.plugins.Events"
SECRET = "a secret of thirty-two bytes or more"
TIMEOUT_S = 1.0


def broker_with(tmp_path: Path, plugins: dict[str, Any], **auth: Any) -> BrokerProcess:
    settings = {"plugins": plugins, "plugin_timeout": f"{TIMEOUT_S:g}s", **auth}
    return BrokerProcess(tmp_path, topics=[{"topic": "#", "log": "all", "durability": "FAST"}], auth=settings)


def code(port: int, client_id: str, **settings: Any) -> int:
    """What a CONNECT is answered with."""
    with RawClient(port) as client:
        client.send(packets.connect(client_id, **settings))
        return client.expect(CONNACK)[1]


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


# Third parties'.


def test_a_third_party_decides_about_logins(tmp_path: Path) -> None:
    with broker_with(tmp_path, {DOOR: {"word": "sesame"}}) as broker:
        assert code(broker.port, "a", username="u", password=b"sesame") == 0
        assert code(broker.port, "b", username="u", password=b"mellon") == 4
        assert code(broker.port, "c", username="shrugs", password=b"sesame") == 4
        assert code(broker.port, "d", username="u") == 4
        assert not broker.lines("sesame|mellon")


def test_how_long_a_decision_took_is_a_metric(tmp_path: Path) -> None:
    with broker_with(tmp_path, {DOOR: {"word": "sesame"}}) as broker:
        for password in (b"sesame", b"mellon"):
            code(broker.port, "a", username="u", password=password)
        told = request(broker.data / "admin.sock", "/metrics").body.decode()
        assert "highway_plugin_decision_seconds_count 2.0" in told.splitlines()


def test_one_that_hangs_raises_exits_or_blocks_denies_and_others_notice_nothing(tmp_path: Path) -> None:
    with broker_with(tmp_path, {DOOR: {"word": "sesame"}}) as broker:
        with broker.client("good", username="u", password=b"sesame") as good:
            good.subscribe(("t", 0))

            def slowest_s() -> float:
                bad = [RawClient(broker.port) for _ in range(4)]
                for client, name in zip(bad, ("raises", "exits", "hangs", "blocks"), strict=True):
                    client.send(packets.connect(name, username=name, password=b"sesame"))
                slowest, end = 0.0, time.monotonic() + 2.5
                while time.monotonic() < end:
                    slowest = max(slowest, timed(lambda: good.publish("t", b"x", qos=1)))
                for client in bad:
                    assert client.expect(CONNACK) == b"\0\x04"
                    client.close()
                return slowest

            assert least(slowest_s, below=0.5) < 0.5
        wait_until(lambda: code(broker.port, "after", username="u", password=b"sesame") == 0, what="a login")
        assert broker.lines("no answer to authenticate within 1 s")
        assert broker.lines("authenticate failed with ValueError")
        assert not broker.lines("sesame")


def test_topics_are_asked_for_once_and_before_anything_is_done(tmp_path: Path) -> None:
    diary = tmp_path / "diary"
    with broker_with(tmp_path, {TOPICS: {"diary": str(diary)}}, anonymous=True) as broker:
        with broker.client("c", username="u") as client:
            assert client.subscribe(("u/a", 1), ("v/a", 1), ("u/#", 1)) == [1, 0x80, 1]
            for number in range(20):
                client.publish("u/a", b"%d" % number, qos=1)
            client.publish("v/a", b"denied", qos=1)
            assert [message.payload for message in client.messages(20)] == [b"%d" % number for number in range(20)]
        asked = lines(diary)
        assert asked.count("c publish u/a") == 1
        assert asked.count("c publish v/a") == 1
        assert asked.count("c receive u/a") == 1
        assert asked.count("c subscribe u/#") == 1
        with broker.client("watch", username="v") as watch:
            assert watch.subscribe(("$replay/earliest/v/a", 1)) == [1]
            watch.ping()
            assert watch.waiting_messages() == []  # what was denied isn't there


def test_a_denied_publish_of_mqtt_5_is_told(tmp_path: Path) -> None:
    plugins = {TOPICS: {"diary": str(tmp_path / "diary")}}
    with broker_with(tmp_path, plugins, anonymous=True) as broker:  # noqa: SIM117
        with RawClient5.connected(broker.port, "c", username="u") as client:
            client.send(packets5.publish("v", b"x", qos=1, packet_id=7))
            ack = packets5.parse_ack(0x40, client.expect(0x40))
            assert (ack.packet_id, ack.reason_code) == (7, 0x87)


def test_a_will_is_asked_for(tmp_path: Path) -> None:
    plugins = {TOPICS: {"diary": str(tmp_path / "diary")}}
    with broker_with(tmp_path, plugins, anonymous=True) as broker:
        assert code(broker.port, "a", username="u", will=("u/will", b"x", 1, False)) == 0
        assert code(broker.port, "b", username="u", will=("v/will", b"x", 1, False)) == 5


def test_what_may_not_be_received_is_left_out_live_replayed_retained_and_shared(tmp_path: Path) -> None:
    plugins = {TOPICS: {"diary": str(tmp_path / "diary"), "prefixes": ["#", "all/"]}}
    with broker_with(tmp_path, plugins, anonymous=True) as broker:  # noqa: SIM117
        with broker.client("p") as publisher, broker.client("s") as live, broker.client("g") as shared:
            assert live.subscribe(("#", 1)) == [1]
            assert shared.subscribe(("$share/g/all/#", 1)) == [1]
            for number in range(5):
                publisher.publish(f"all/{number}", b"open", qos=1, retain=True)
                publisher.publish("all/secret", b"hidden", qos=1, retain=True)
            expected = [f"all/{number}" for number in range(5)]
            assert [message.topic for message in live.messages(5)] == expected
            assert [message.topic for message in shared.messages(5)] == expected
            with broker.client("late") as late:
                late.subscribe(("all/#", 1))
                assert sorted(message.topic for message in late.messages(5)) == expected
                late.subscribe(("$replay/earliest/all/#", 1))
                assert [message.topic for message in late.messages(5)] == expected
                late.ping()
                assert late.waiting_messages() == []
            live.ping()
            shared.ping()
            assert live.waiting_messages() == []
            assert shared.waiting_messages() == []


def test_a_topic_plugin_that_hangs_or_raises_denies_its_own_client_only(tmp_path: Path) -> None:
    plugins = {TOPICS: {"diary": str(tmp_path / "diary")}}
    with broker_with(tmp_path, plugins, anonymous=True) as broker:
        with broker.client("bad", username="u") as bad, broker.client("good", username="v") as good:
            good.publish("v/a", b"known", qos=1)
            topics = iter("abcde")

            def slowest_s() -> float:
                begin, slowest = time.monotonic(), 0.0
                bad.send(packets.publish(f"u/hangs/{next(topics)}", b"x", qos=1, packet_id=1))
                while time.monotonic() < begin + TIMEOUT_S / 2:
                    slowest = max(slowest, timed(lambda: good.publish("v/a", b"x", qos=1)))
                assert bad.expect(0x40) == b"\0\x01"  # acknowledged and dropped, as 3.1.1 has no other way
                assert time.monotonic() - begin >= TIMEOUT_S
                return slowest

            assert least(slowest_s, below=0.5) < 0.5
            bad.publish("u/raises", b"x", qos=1)
            assert bad.subscribe(("u/raises", 1), ("u/fine", 1)) == [0x80, 1]
        with broker.client("watch", username="u") as watch:
            assert watch.subscribe(("$replay/earliest/u/#", 1)) == [1]
            watch.ping()
            assert watch.waiting_messages() == []  # nothing of it is there


def test_what_was_decided_is_asked_for_again_after_a_while(tmp_path: Path) -> None:
    diary = tmp_path / "diary"
    with broker_with(tmp_path, {TOPICS: {"diary": str(diary)}}, anonymous=True, plugin_cache="1s") as broker:  # noqa: SIM117
        with broker.client("c", username="u") as client:
            client.subscribe(("u/a", 1))

            def asked_again() -> bool:
                client.publish("u/a", b"x", qos=1)
                client.message()
                return lines(diary).count("c publish u/a") >= 3 and lines(diary).count("c receive u/a") >= 3

            wait_until(asked_again, what="two more questions")


def test_rules_come_first_and_plugins_then(tmp_path: Path) -> None:
    diary = tmp_path / "diary"
    acl = [{"allow": ["publish", "subscribe"], "topic": "u/open"}]
    with broker_with(tmp_path, {TOPICS: {"diary": str(diary)}}, anonymous=True, acl=acl) as broker:
        with broker.client("c", username="u") as client:
            assert client.subscribe(("u/open", 1), ("u/closed", 1)) == [1, 0x80]
        assert lines(diary) == ["c subscribe u/open"]


def test_events(tmp_path: Path) -> None:
    diary = tmp_path / "diary"
    with broker_with(tmp_path, {EVENTS: {"diary": str(diary)}}, anonymous=True) as broker:
        with broker.client("c", username="u") as client:
            client.subscribe(("a/#", 1))
            client.publish("a/b", b"x", qos=1)
            client.send(packets.packet(0xA2, b"\0\x09" + packets.text("a/#")))
            client.expect(0xB0)
        wait_until(lambda: "disconnected c u" in lines(diary))
        broker.wait_for_line("on_broker_message_received is never called")
    assert lines(diary) == [
        "pre_start",
        "connected c u",
        "subscribed c a/# 1",
        "unsubscribed c a/#",
        "disconnected c u",
        "pre_shutdown",
        "close",
    ]


@pytest.mark.parametrize(
    ("plugin", "options", "why"),
    [
        ("no.such.Plugin", {}, "can't be imported: ModuleNotFoundError"),
        ("tests.harness.plugins.Nothing", {}, "can't be imported"),
        ("pathlib.Path", {}, "is no plugin"),
        (DOOR, {}, 'its options are wrong: missing value for field "word"'),
        (DOOR, {"word": 7}, "its options are wrong: word: str is wanted"),
        (DOOR, {"word": "x", "wort": "sesame"}, "its options are wrong: can not match"),
        ("tests.harness.plugins.NoCoroutine", {}, "its authenticate is no coroutine"),
        ("tests.harness.plugins.NeedsBroker", {}, "internal_message_broadcast is amqtt's broker's"),
        ("tests.harness.plugins.Exits", {}, "can't be made: SystemExit: 5"),
        ("tests.harness.plugins.Exits", {"when": "start"}, "on_broker_pre_start: SystemExit: 5"),
        ("tests.harness.plugins.Exits", {"when": "options"}, "auth.plugins: SystemExit: 5"),
        ("amqtt.contrib.ldap.UserAuthLdapPlugin", {}, "can't be imported: ModuleNotFoundError: No module named 'ldap'"),
    ],
)
def test_a_plugin_that_cant_be_used_keeps_the_broker_from_starting(
    tmp_path: Path, plugin: str, options: dict[str, Any], why: str
) -> None:
    broker = broker_with(tmp_path, {plugin: options})
    broker.spawn()
    assert broker.wait() == 1
    (line,) = broker.lines("auth.plugins")
    assert why in line
    assert "sesame" not in line


# amqtt's own.


def test_amqtt_anonymous_and_file(tmp_path: Path) -> None:
    from pwdlib import PasswordHash
    from pwdlib.hashers.argon2 import Argon2Hasher

    users = tmp_path / "users"
    users.write_text(f"alice:{PasswordHash((Argon2Hasher(),)).hash('wonderland')}\n")
    plugins = {"amqtt.plugins.authentication.FileAuthPlugin": {"password_file": str(users)}}
    with broker_with(tmp_path, plugins, plugin_timeout="20s") as broker:
        assert code(broker.port, "a", username="alice", password=b"wonderland") == 0
        assert code(broker.port, "a", username="alice", password=b"x") == 4
        assert code(broker.port, "a", username="bob", password=b"wonderland") == 4
        assert code(broker.port, "a") == 4
    plugins = {"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}}
    (tmp_path / "2").mkdir()
    with broker_with(tmp_path / "2", plugins) as broker:
        assert code(broker.port, "a") == 0


def test_amqtt_topic_acl_and_taboo(tmp_path: Path) -> None:
    plugins: dict[str, Any] = {
        "amqtt.plugins.topic_checking.TopicAccessControlListPlugin": {
            "publish_acl": {"u": ["open/+", "prohibited"]},
            "acl": {"u": ["open/#", "prohibited"]},
        },
        "amqtt.plugins.topic_checking.TopicTabooPlugin": {},
    }
    with broker_with(tmp_path, plugins, anonymous=True) as broker, broker.client("c", username="u") as client:
        assert client.subscribe(("open/#", 1), ("closed", 1), ("prohibited", 1)) == [1, 0x80, 0x80]
        client.publish("closed", b"x", qos=1)
        client.publish("open/a/b", b"x", qos=1)
        client.publish("open/a", b"y", qos=1)
        assert client.message().payload == b"y"


def test_amqtt_jwt(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text(SECRET + "\n")
    key.chmod(0o600)
    plugins: dict[str, Any] = {
        "amqtt.contrib.jwt.UserAuthJwtPlugin": {"secret_key": {"file": str(key)}, "user_claim": "sub"},
        "amqtt.contrib.jwt.TopicAuthJwtPlugin": {
            "secret_key": {"file": str(key)},
            "publish_claim": "pub",
            "subscribe_claim": "sub_to",
            "receive_claim": "sub_to",
        },
    }
    claims = {"sub": "u", "pub": ["mine/#"], "sub_to": ["mine/#"], "exp": time.time() + 3600}
    token = jwt.encode(claims, SECRET).encode()
    with broker_with(tmp_path, plugins) as broker:
        with broker.client("c", username="u", password=token) as client:
            assert client.subscribe(("mine/a", 1), ("theirs", 1)) == [1, 0x80]
            client.publish("theirs", b"x", qos=1)
            client.publish("mine/a", b"y", qos=1)
            assert client.message().payload == b"y"
        late = jwt.encode({**claims, "exp": time.time() - 1}, SECRET).encode()
        forged = jwt.encode(claims, "another secret of thirty-two bytes").encode()
        assert code(broker.port, "x", username="u", password=late) == 4
        assert code(broker.port, "x", username="u", password=forged) == 4
        assert code(broker.port, "x", username="v", password=token) == 4
        assert not broker.lines(token.decode()[:20])


@contextmanager
def http_server(calls: list[dict[str, Any]]) -> Iterator[int]:
    """A real server that knows one user: what an operator has who runs the HTTP plugins."""
    loop = asyncio.new_event_loop()

    async def user(request: web.Request) -> web.Response:
        asked = await request.json()
        calls.append(asked)
        return web.json_response({"ok": asked["password"] == "wonderland"})

    async def acl(request: web.Request) -> web.Response:
        asked = await request.json()
        calls.append(asked)
        return web.json_response({"ok": asked["topic"].startswith("open/")})

    async def start() -> tuple[web.AppRunner, int]:
        app = web.Application()
        app.add_routes([web.post("/user", user), web.post("/acl", acl)])
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return runner, runner.addresses[0][1]

    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    runner, port = asyncio.run_coroutine_threadsafe(start(), loop).result(10)
    try:
        yield port
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


def test_amqtt_http(tmp_path: Path) -> None:
    calls: list[dict[str, Any]] = []
    with http_server(calls) as port:
        server = {"host": "127.0.0.1", "port": port, "request_method": "post"}
        plugins: dict[str, Any] = {
            "amqtt.contrib.http.UserAuthHttpPlugin": server,
            "amqtt.contrib.http.TopicAuthHttpPlugin": server,
        }
        with broker_with(tmp_path, plugins) as broker:
            with broker.client("c", username="u", password=b"wonderland") as client:
                assert client.subscribe(("open/#", 1), ("closed", 1)) == [1, 0x80]
                client.publish("closed", b"x", qos=1)
                for payload in (b"1", b"2", b"3"):
                    client.publish("open/a", payload, qos=1)
                assert [message.payload for message in client.messages(3)] == [b"1", b"2", b"3"]
            assert code(broker.port, "c", username="u", password=b"x") == 4
            kinds = [(call.get("topic"), call.get("acc")) for call in calls]
            assert kinds.count(("open/a", 2)) == 1
            assert kinds.count(("open/a", 1)) == 1
            assert ("open/#", 4) in kinds
    # The server is gone: no answer is no.


def test_amqtt_sql(tmp_path: Path) -> None:
    pytest.importorskip("aiosqlite")
    from amqtt.contrib.auth_db.managers import TopicManager, UserManager
    from amqtt.contrib.auth_db.models import PasswordHasher

    connection = f"sqlite+aiosqlite:///{tmp_path / 'users.db'}"
    PasswordHasher(schemes=["argon2"])

    async def fill() -> None:
        users, topics = UserManager(connection), TopicManager(connection)
        await users.db_sync()
        await topics.db_sync()
        await users.create_user_auth("u", "wonderland")
        await topics.create_topic_auth("u")
        await topics.add_allowed_topic("u", "open", "publish")
        await topics.add_allowed_topic("u", "open", "subscribe")
        await topics.add_allowed_topic("u", "open", "receive")
        await users.close()
        await topics.close()

    asyncio.run(fill())
    plugins: dict[str, Any] = {
        "amqtt.contrib.auth_db.UserAuthDBPlugin": {"connection": connection, "hash_schemes": ["argon2"]},
        "amqtt.contrib.auth_db.TopicAuthDBPlugin": {"connection": connection},
    }
    with broker_with(tmp_path, plugins, plugin_timeout="20s") as broker:
        with broker.client("c", username="u", password=b"wonderland") as client:
            assert client.subscribe(("open", 1), ("closed", 1)) == [1, 0x80]
            client.publish("closed", b"x", qos=1)
            client.publish("open", b"y", qos=1)
            assert client.message().payload == b"y"
        assert code(broker.port, "c", username="u", password=b"x") == 4


def test_amqtt_certificate(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server = authority.server()
    tls = {"certfile": str(server.certfile), "keyfile": str(server.keyfile), "cafile": str(authority.cafile)}
    plugins = {"amqtt.contrib.cert.UserAuthCertPlugin": {"uri_domain": "test.highway"}}
    process = broker_with(tmp_path, plugins)
    process.write_config(
        {
            "topics": [],
            "auth": {"plugins": plugins},
            "listeners": {"local": {"port": process.port, "tls": {**tls, "require_certificate": True}}},
        }
    )
    device = authority.device("spiffe://test.highway/device/sensor-1")
    context = ssl.create_default_context(cafile=str(authority.cafile))
    context.load_cert_chain(device.certfile, device.keyfile)
    with process:
        for client_id, answer in (("sensor-1", 0), ("sensor-2", 4)):
            with RawClient(process.port, tls=context) as client:
                client.send(packets.connect(client_id))
                assert client.expect(CONNACK) == bytes((0, answer))


def test_amqtt_event_logger(tmp_path: Path) -> None:
    with broker_with(tmp_path, {"amqtt.plugins.logging_amqtt.EventLoggerPlugin": {}}, anonymous=True) as broker:
        with broker.client("c"):
            broker.wait_for_line("on_broker_client_connected")
        broker.wait_for_line("on_broker_client_disconnected")
