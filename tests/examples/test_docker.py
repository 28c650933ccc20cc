"""The container that `examples/docker` makes: linted, without root, and from files that are there."""

from __future__ import annotations

import fnmatch
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from highway.config import load_settings
from tests.harness.broker_process import ROOT

DOCKER = ROOT / "examples" / "docker"
LINES = (DOCKER / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", "").splitlines()
HADOLINT = shutil.which("hadolint") or shutil.which("hadolint", path=str(Path(sys.executable).parent))


def instructions(name: str) -> list[list[str]]:
    return [shlex.split(line)[1:] for line in LINES if line.startswith(f"{name} ")]


@pytest.mark.skipif(HADOLINT is None, reason="hadolint is not installed")
def test_hadolint_finds_nothing() -> None:
    done = subprocess.run([HADOLINT, str(DOCKER / "Dockerfile")], check=False, capture_output=True, text=True)  # type: ignore[list-item]
    assert (done.returncode, done.stdout) == (0, "")


def test_what_is_copied_is_there_and_reaches_the_builder() -> None:
    ignore = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    sent = [pattern[1:] for pattern in ignore if pattern.startswith("!")]
    for words in instructions("COPY"):
        if any(word.startswith("--from=") for word in words):
            continue
        for source in [word for word in words if not word.startswith("--")][:-1]:
            assert (ROOT / source).exists(), source
            assert any(fnmatch.fnmatch(source, pattern) for pattern in sent), f"{source} is ignored"


def test_it_runs_without_root_and_with_a_configuration_that_is_valid() -> None:
    ((user,),) = instructions("USER")
    assert int(user) > 0
    settings = load_settings(DOCKER / "highway.yaml")
    ((volume,),) = instructions("VOLUME")
    assert str(settings.data_dir) == volume
    ((port,),) = instructions("EXPOSE")
    assert [listener.port for listener in settings.listeners] == [int(port)]
    required = re.search(r'requires-python = ">=3\.(\d+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert required is not None
    for image, *_ in instructions("FROM"):
        found = re.fullmatch(r"python:3\.(\d+)-slim-\w+", image)
        assert found is not None
        assert int(found[1]) >= int(required[1])


def test_compose_opens_ports_to_this_machine_only() -> None:
    service = yaml.safe_load((DOCKER / "compose.yaml").read_text(encoding="utf-8"))["services"]["highway"]
    assert service["ports"]
    assert all(mapping.startswith("127.0.0.1:") for mapping in service["ports"])
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert (DOCKER / service["build"]["context"]).resolve() == ROOT
    assert (ROOT / service["build"]["dockerfile"]) == DOCKER / "Dockerfile"
