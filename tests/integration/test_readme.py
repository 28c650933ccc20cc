"""What the first page shows: its console is typed into a shell, and says there what it says here."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.harness.broker_process import BrokerProcess

ROOT = Path(__file__).parents[2]


def commands_of_the_console() -> list[tuple[str, list[str]]]:
    """Each command of README's first console, without its comment, and the lines that follow it."""
    block = re.search(r"^```console\n(.*?)^```", (ROOT / "README.md").read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert block is not None
    found: list[tuple[str, list[str]]] = []
    for line in block[1].splitlines():
        if line.startswith("$ "):
            found.append((line.removeprefix("$ ").partition("  #")[0].rstrip(), []))
        elif line != "^C":
            found[-1][1].append(line)
    return found


def type_in(command: str, expected: list[str], environment: dict[str, str]) -> None:
    """Run `command`, which mosquitto's clients get their port for from `environment`; it has to print `expected`."""
    ending = f" -C {len(expected)} -W 20" if expected else ""
    shown = subprocess.run(
        ["bash", "-c", command + ending], env=environment, check=False, capture_output=True, text=True, timeout=60
    )
    assert shown.stdout.splitlines() == expected, f"{command}: {shown.stderr}"


@pytest.mark.usefixtures("mosquitto_clients")
def test_the_console_of_the_readme_is_true(tmp_path: Path) -> None:
    # Without a file, these are the entries.
    topics = yaml.safe_load((ROOT / "config" / "topics.yaml").read_text("utf-8"))
    broker = BrokerProcess(tmp_path, topics=topics)
    for name in ("mosquitto_pub", "mosquitto_sub"):
        (tmp_path / name).write_text(f"-h 127.0.0.1\n-p {broker.port}\n")
    environment = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path)}
    starts = 0
    with broker:
        for command, expected in commands_of_the_console():
            if command.endswith("make run &"):
                starts += 1
                if starts > 1:
                    assert command.startswith("pkill -9 ")
                    broker.restart()
                for line in expected:
                    # The port is another in tests.
                    assert any(line == said.replace(str(broker.port), "1883") for said in broker.stderr), line
            else:
                type_in(command, expected, environment)
    assert starts == 2
