"""The pictures of the dashboard: there, small, and shown in README."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "screenshots"


@pytest.mark.parametrize("name", ["idle", "load", "catching-up", "attention"])
def test_picture_is_there_and_small(name: str) -> None:
    data = (FOLDER / f"{name}.png").read_bytes()
    assert data.startswith(b"\x89PNG")
    assert len(data) < 300_000


def test_readme_shows_one() -> None:
    assert "](examples/screenshots/load.png)" in (ROOT / "README.md").read_text(encoding="utf-8")
