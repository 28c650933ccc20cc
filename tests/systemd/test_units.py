"""The units: systemd finds nothing wrong with them, they are hardened, and what they run works."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.crash.strace import needs_strace
from tests.harness.broker_process import ROOT, BrokerProcess, wait_until

if TYPE_CHECKING:
    from pathlib import Path

UNITS = ROOT / "systemd"
SERVICES = sorted(path.name for path in UNITS.glob("*.service"))
TIMERS = sorted(path.name for path in UNITS.glob("*.timer"))
MAX_EXPOSURE = 15  # of 100: 1.5 as `systemd-analyze security` prints it

needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed (Debian: systemd)"
)


def settings(name: str) -> list[tuple[str, str]]:
    """(key, value) of a unit, in order, for each time that it is set."""
    lines = (UNITS / name).read_text(encoding="utf-8").splitlines()
    return [tuple(line.split("=", 1)) for line in lines if re.match(r"[A-Z]\w*=", line)]  # type: ignore[misc]


def values(name: str, key: str) -> list[str]:
    return [value for found, value in settings(name) if found == key]


def test_every_timer_has_its_service_and_readme_names_every_unit() -> None:
    assert {name.removesuffix(".timer") for name in TIMERS} < {name.removesuffix(".service") for name in SERVICES}
    readme = (UNITS / "README.md").read_text(encoding="utf-8")
    assert {name for name in SERVICES + TIMERS if f"`{name}`" not in readme} == set()


@needs_systemd
def test_verify_finds_nothing(tmp_path: Path) -> None:
    """`highway` isn't installed in /usr/bin where the tests run: something that is stands for it."""
    for name in SERVICES + TIMERS:
        text = (UNITS / name).read_text(encoding="utf-8").replace("/usr/bin/highway", "/bin/true")
        (tmp_path / name.replace("@.", "@site7.")).write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", *map(str, sorted(tmp_path.iterdir()))],
        check=False,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@needs_systemd
@pytest.mark.parametrize("name", SERVICES)
def test_exposure(name: str) -> None:
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", f"--threshold={MAX_EXPOSURE}", str(UNITS / name)],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, "\n".join(line for line in done.stdout.splitlines() if not line.startswith("✓"))
    found = re.search(r"exposure level for \S+: ([\d.]+)", done.stdout)
    assert found is not None
    assert float(found[1]) <= MAX_EXPOSURE / 10


def test_the_broker_reloads_only_what_was_checked() -> None:
    assert values("highway.service", "Type") == ["notify"]
    check, hup = values("highway.service", "ExecReload")
    assert check.startswith("/usr/bin/highway config check ")
    assert hup == "/bin/kill -HUP $MAINPID"


def test_the_unit_of_an_instance_is_the_unit() -> None:
    instance = [
        (key, value.replace("/etc/highway/%i.", "/etc/highway/highway.")) for key, value in settings("highway@.service")
    ]
    assert [(key, value.replace("-%i", "").replace(" %i", "")) for key, value in instance] == settings(
        "highway.service"
    )


def command(name: str, key: str, here: Path) -> list[str]:
    """A command of a unit as systemd would run it, on the folders of a test."""
    (line,) = values(name, key)
    line = line.replace("$$", "$").replace("%%", "%").replace("/var/lib/", f"{here}/")
    line = line.replace("/etc/highway/", f"{here}/").replace("/usr/bin/highway", f"{sys.executable} -m highway")
    shell = re.fullmatch(r"/bin/sh -c '(.*)'", line)
    return ["/bin/sh", "-c", shell[1]] if shell else line.split()


def run(words: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, check=False, capture_output=True, text=True, cwd=ROOT)


def test_what_the_units_run_works(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, topics=[{"topic": "#", "log": "all"}])
    broker.data = tmp_path / "highway"
    broker.write_config({})
    words = command("highway.service", "ExecStart", tmp_path)
    at = words.index("serve")
    assert words[at:] == ["serve", "--config", str(broker.config), "--data-dir", str(broker.data)]
    with broker, broker.client("sensor") as client:
        client.publish("a", b"1")
        made = run(command("highway-backup.service", "ExecStart", tmp_path))
        assert made.returncode == 0, made.stderr
        verified = run(command("highway-verify.service", "ExecStart", tmp_path))
        assert verified.returncode == 0, verified.stderr
    backups = tmp_path / "highway-backups"
    (backup, *_) = backups.iterdir()
    assert re.fullmatch(r"\d{8}T\d{6}Z", backup.name)
    assert json.loads((backup / "MANIFEST.json").read_text())["files"]

    for day in range(10):
        shutil.copytree(backup, backups / f"199001{day + 10}T000000Z")
    (backups / "19800101T000000Z").mkdir()  # cut off: it isn't counted among the seven
    done = run(command("highway-backup.service", "ExecStartPost", tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    kept = sorted(path.name for path in backups.iterdir() if (path / "MANIFEST.json").exists())
    assert len(kept) == 7
    assert backup.name in kept
    assert "19900119T000000Z" in kept
    assert "19900110T000000Z" not in kept


def allowed_system_calls() -> set[str]:
    """What `SystemCallFilter=` of the broker leaves, with the groups of the systemd that is installed."""
    text = subprocess.run(["systemd-analyze", "syscall-filter"], check=True, capture_output=True, text=True).stdout
    groups: dict[str, list[str]] = {}
    for line in text.splitlines():
        word = line.strip()
        if line.startswith("@"):
            members = groups[word] = []
        elif word and not word.startswith("#"):
            members.append(word)

    def expand(name: str) -> set[str]:
        if not name.startswith("@"):
            return {name}
        return set[str]().union(*map(expand, groups[name])) if groups[name] else set()

    allowed, denied = values("highway.service", "SystemCallFilter")
    taken = set[str]().union(*map(expand, denied.removeprefix("~").split()))
    return (expand(allowed) | expand("@default")) - taken


@needs_systemd
@needs_strace
def test_the_broker_needs_no_system_call_that_its_unit_forbids(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, topics=[{"topic": "#", "log": "all", "durability": "SAFE"}])
    counts = tmp_path / "counts"
    broker.program = ["strace", "-f", "-c", "-o", str(counts), *broker.program]
    broker.start()
    assert broker.process is not None
    with broker.client("sensor") as client:
        client.subscribe(("#", 1))
        client.publish("a", b"1")
    (child,) = psutil.Process(broker.process.pid).children()
    child.terminate()
    wait_until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, what="the end")
    assert broker.wait() == 0
    used = {line.split()[-1] for line in counts.read_text().splitlines() if re.match(r"\s*\d", line)} - {"total"}
    assert "fdatasync" in used
    assert used - allowed_system_calls() == set()
