"""Field reports of kind OPS against a running broker: reloads that fail, files that are replaced, security misspelled.

Reports 61, 63 and 65 have tests of their own: of the loader in tests/config, of access in `test_access`.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from highway.cli import main
from tests.harness import packets
from tests.harness.broker_process import BrokerProcess
from tests.harness.raw_client import RawClient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

AUTH = {"anonymous": True, "acl": [{"allow": ["publish", "subscribe", "replay"], "topic": "mine/#"}]}


def topics(retention: str) -> list[dict[str, str]]:
    return [{"topic": "mine/#", "log": "mine", "retention": retention}]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("running"), topics=topics("30d"), auth=AUTH) as running:
        yield running


@pytest.fixture
def broker(running: BrokerProcess) -> Iterator[BrokerProcess]:
    """The same one for all, and its own configuration for each."""
    yield running
    folder = running.config.parent
    for left in (running.config, *folder.glob("..*")):
        if left.is_dir() and not left.is_symlink():
            shutil.rmtree(left)
        else:
            left.unlink(missing_ok=True)
    running.write_config({"topics": topics("30d"), "auth": AUTH})
    code, said = highway("reload", "--allow-trim", "--data-dir", str(running.data))
    assert code == 0, said


def highway(*words: str) -> tuple[int, str]:
    """Exit code of a command, and all that it says."""
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(out):
        code = main.run(words)
    return code, out.getvalue()


def reload(broker: BrokerProcess) -> tuple[int, str]:
    return highway("reload", "--data-dir", str(broker.data))


def text_with(broker: BrokerProcess, **changed: Any) -> str:
    """The broker's file with other values for some keys."""
    return json.dumps(json.loads(broker.config.read_text("utf-8")) | changed)


# Report 57: a failed reload opens no door.


def become_a_folder(path: Path) -> None:
    """What can't be read, also by root."""
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (become_a_folder, "highway.yaml"),
        (lambda path: path.unlink(), "highway.yaml"),
        (lambda path: path.write_text("auth: {acl: [\n", "utf-8"), "highway.yaml:"),
        (lambda path: path.write_text(path.read_text("utf-8").replace('"mine/#"', '"ie#"'), "utf-8"), "ie#"),
        (lambda path: path.write_text(path.read_text("utf-8").replace('"acl"', '"acls"'), "utf-8"), "acls"),
        (lambda path: path.write_text("", "utf-8"), "highway.yaml"),
    ],
    ids=["unreadable", "deleted", "syntax", "filter", "key", "empty"],
)
def test_report_57_a_failed_reload_opens_no_door(
    broker: BrokerProcess, spoil: Callable[[Path], object], says: str
) -> None:
    with broker.client("c") as client:
        assert client.subscribe(("#", 0), ("mine/a", 0)) == [0x80, 0]
        spoil(broker.config)
        code, said = reload(broker)
        assert code == 2
        assert says in said
        for one in (client, RawClient.connected(broker.port, "later")):
            assert one.subscribe(("#", 0), ("$replay/earliest/#", 0), ("mine/b", 0)) == [0x80, 0x80, 0]
            one.publish("theirs", b"x")
        client.ping()  # still connected
    checked, said = highway("config", "check", str(broker.config))
    assert checked == 2
    assert says in said


# Report 59: Highway reads its files when it is told to, by `highway reload` or SIGHUP, and watches none. What counts is
# what stands under the path then, however it came there.


def in_place(path: Path, text: str) -> None:
    path.write_text(text, "utf-8")


def moved_over(path: Path, text: str) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_text(text, "utf-8")
    fresh.replace(path)


def mounted(path: Path, text: str) -> None:
    """As Kubernetes mounts a ConfigMap: two links, of which the second is swapped."""
    for version in ("1", "2"):
        folder = path.parent / f"..{version}"
        folder.mkdir()
        shutil.copy(path, folder / path.name) if version == "1" else (folder / path.name).write_text(text, "utf-8")
    data = path.parent / "..data"
    data.symlink_to("..1")
    path.unlink()
    path.symlink_to(f"..data/{path.name}")
    other = path.parent / "..data_tmp"
    other.symlink_to("..2")
    other.replace(data)


def deleted_first(path: Path, text: str) -> None:
    path.unlink()
    path.write_text(text, "utf-8")


def with_an_old_time(path: Path, text: str) -> None:
    before = path.stat()
    path.write_text(text, "utf-8")
    assert path.stat().st_size == before.st_size
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns - 10**12))


@pytest.mark.parametrize("change", [in_place, moved_over, mounted, deleted_first, with_an_old_time])
def test_report_59_what_stands_under_the_path_counts(
    broker: BrokerProcess, change: Callable[[Path, str], None]
) -> None:
    text = json.dumps(json.loads(broker.config.read_text("utf-8")))
    broker.config.write_text(text, "utf-8")
    change(broker.config, text.replace('"30d"', '"31d"'))
    code, said = reload(broker)
    assert code == 0, said
    assert "30d -> 31d" in said
    code, said = reload(broker)
    assert (code, "->" in said) == (0, False)


def test_report_59_half_a_file_is_refused_and_the_whole_one_counts(broker: BrokerProcess) -> None:
    text = text_with(broker, topics=topics("31d"))
    broker.config.write_text(text[: len(text) // 2], "utf-8")
    assert reload(broker)[0] == 2
    broker.config.write_text(text, "utf-8")
    code, said = reload(broker)
    assert code == 0
    assert "30d -> 31d" in said


# Report 67: a mistake in the security section.


@pytest.mark.parametrize(
    ("auth", "says"),
    [
        ({"anonymos": True}, "did you mean 'anonymous'"),
        ({"anonymous": True, "acls": []}, "did you mean 'acl'"),
        ({"allow_anonymous": "false"}, "allow_anonymous"),
        ({"anonymous": "false"}, "write false without them"),
        ({"password-file": "passwd"}, "did you mean 'password_file'"),
    ],
)
def test_report_67_a_misspelled_security_section_does_not_start(
    tmp_path: Path, auth: dict[str, Any], says: str
) -> None:
    broker = BrokerProcess(tmp_path, auth=auth)
    broker.spawn()
    assert broker.wait() == 2
    assert any(says in line for line in broker.stderr), broker.stderr
    assert any("auth" in line and "highway.yaml:" in line for line in broker.stderr), broker.stderr


def test_report_67_an_empty_security_section_lets_nobody_in_or_does_not_start(tmp_path: Path) -> None:
    empty = BrokerProcess(tmp_path, auth={})
    empty.spawn()
    assert empty.wait() == 2
    passwords = tmp_path / "passwd"
    passwords.write_text("", "utf-8")
    passwords.chmod(0o600)
    with BrokerProcess(tmp_path, auth={"password_file": str(passwords)}) as broker:
        for connect in (packets.connect("c"), packets.connect("c", username="root")):
            client = RawClient(broker.port)
            client.send(connect)
            assert client.expect(0x20)[1] in (4, 5)
            client.expect_closed()
        assert broker.lines("^highway: .*password") != []


def test_report_67_the_start_says_who_may_connect(broker: BrokerProcess) -> None:
    assert broker.lines("^highway: anybody on this machine may connect") != []
