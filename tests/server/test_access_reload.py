"""Reload of who is let in and who may what: all of it or nothing, and nobody who is in notices a failure."""

from __future__ import annotations

import contextlib
import io
from typing import TYPE_CHECKING, Any

import pytest

from highway.cli import main
from highway.config.passwords import change_password_file, hash_password
from tests.harness import packets
from tests.harness.broker_process import BrokerProcess
from tests.harness.raw_client import CONNACK, RawClient
from tests.harness.raw_client5 import RawClient5

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ALICE = {"username": "alice", "password": b"wonderland"}
RULES = [{"allow": ["publish", "subscribe"], "topic": "%u/#"}]


class Guarded(BrokerProcess):
    """A broker with a password file and rules."""

    def __init__(self, directory: Path) -> None:
        self.passwords = directory / "passwd"
        change_password_file(self.passwords, "alice", hash_password(ALICE["password"]))  # type: ignore[arg-type]
        self.auth: dict[str, Any] = {"password_file": str(self.passwords), "acl": RULES, "plugin_timeout": "1s"}
        super().__init__(directory, auth=self.auth)

    def edit(self, **changes: Any) -> None:
        self.auth |= changes
        self.write_config({"topics": [], "auth": self.auth})

    def reload(self) -> tuple[int, str]:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as err:
            code = main.run(["reload", "--data-dir", str(self.data)])
        return code, err.getvalue()

    def answer(self, **settings: Any) -> int:
        with RawClient(self.port) as client:
            client.send(packets.connect("x", **settings))
            return client.expect(CONNACK)[1]


def unreadable(broker: Guarded) -> None:
    broker.passwords.chmod(0o644)


def broken(broker: Guarded) -> None:
    broker.passwords.write_text("alice:no hash\n")


def gone(broker: Guarded) -> None:
    broker.passwords.unlink()


def wrong_rule(broker: Guarded) -> None:
    broker.edit(acl=[{"allow": "publish", "topic": "a#"}])


def no_plugin(broker: Guarded) -> None:
    broker.edit(plugins={"no.such.Plugin": {}})


def a_plugin_that_cant_start(broker: Guarded) -> None:
    broker.edit(plugins={"tests.harness.plugins.NeedsBroker": {}})


def a_plugin_that_ends_the_program(broker: Guarded) -> None:
    broker.edit(plugins={"tests.harness.plugins.Exits": {"when": "options"}})


@pytest.mark.parametrize(
    "fault",
    [unreadable, broken, gone, wrong_rule, no_plugin, a_plugin_that_cant_start, a_plugin_that_ends_the_program],
)
def test_a_reload_that_fails_leaves_everything_as_it_was(tmp_path: Path, fault: Callable[[Guarded], None]) -> None:
    with Guarded(tmp_path) as broker, broker.client("in", **ALICE) as client:
        client.subscribe(("alice/#", 1))
        fault(broker)
        code, err = broker.reload()
        assert code != 0
        assert err
        assert broker.answer(username="mallory", password=b"x") == 4
        assert broker.answer() == 5
        with broker.client("also", **ALICE) as other:
            assert other.subscribe(("alice/a", 1), ("bob/a", 1)) == [1, 0x80]
        client.publish("alice/a", b"still", qos=1)
        assert client.message().payload == b"still"


def test_other_passwords_and_rules_count_at_once_and_nobody_is_disconnected(tmp_path: Path) -> None:
    with Guarded(tmp_path) as broker, broker.client("in", **ALICE) as client:
        change_password_file(broker.passwords, "bob", hash_password(b"builder"))
        change_password_file(broker.passwords, "alice", hash_password(b"another"))
        broker.edit(acl=[{"allow": "publish", "topic": "%u/#"}])
        assert broker.reload()[0] == 0
        assert broker.answer(username="bob", password=b"builder") == 0
        assert broker.answer(**ALICE) == 4
        assert broker.answer(username="alice", password=b"another") == 0
        assert client.subscribe(("alice/a", 1)) == [0x80]


def test_a_user_that_was_removed_is_disconnected_and_nobody_else(tmp_path: Path) -> None:
    with Guarded(tmp_path) as broker:
        change_password_file(broker.passwords, "bob", hash_password(b"builder"))
        broker.edit(acl=[{"allow": ["publish", "subscribe"], "topic": "#"}])
        assert broker.reload()[0] == 0
        old = broker.client("old", username="bob", password=b"builder")
        new = RawClient5.connected(
            broker.port, "new", username="bob", password=b"builder", will=("gone", b"bob", 0, False)
        )
        with old, new, broker.client("in", **ALICE) as client:
            client.subscribe(("#", 1))
            change_password_file(broker.passwords, "bob", None)
            change_password_file(broker.passwords, "alice", hash_password(b"another"))
            assert broker.reload()[0] == 0
            old.expect_closed()
            new.expect_disconnect(0x87)
            assert client.message().topic == "gone"
            client.publish("t", b"still", qos=1)
            assert client.message().payload == b"still"
        assert broker.answer(username="bob", password=b"builder") == 4


def test_plugins_that_come_with_a_reload_have_a_say_about_who_is_in(tmp_path: Path) -> None:
    with Guarded(tmp_path) as broker, broker.client("in", **ALICE) as client:
        assert client.subscribe(("alice/#", 1)) == [1]
        diary = str(tmp_path / "diary")
        broker.edit(
            plugins={"tests.harness.plugins.Topics": {"diary": diary}, "tests.harness.plugins.Door": {"word": "x"}}
        )
        assert broker.reload()[0] == 0
        assert client.subscribe(("alice/raises", 1), ("alice/b", 1)) == [0x80, 1]
        client.publish("alice/secret", b"not received", qos=1)
        client.publish("alice/b", b"received", qos=1)
        assert client.message().payload == b"received"
        assert broker.answer(username="carol", password=b"x") == 0
        broker.edit(plugins={})
        assert broker.reload()[0] == 0
        assert broker.answer(username="carol", password=b"x") == 4
        client.publish("alice/secret", b"received", qos=1)
        assert client.message().topic == "alice/secret"
