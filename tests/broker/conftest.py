"""Rigs are let go of when their test ends: a thousand open descriptors break every client that uses `select`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.broker.rig import RIGS

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _dispose_of_rigs() -> Iterator[None]:
    yield
    while RIGS:
        rig = RIGS.pop()
        if rig not in RIGS:
            rig.dispose()
