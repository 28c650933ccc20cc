"""A disk that exists in memory only."""

from __future__ import annotations

import pytest

from highway.storage.disk.descriptors import Descriptors
from tests.storage.simulated_filesystem import SimulatedFileSystem


@pytest.fixture
def fs():
    return SimulatedFileSystem()


@pytest.fixture
def files(fs):
    return Descriptors(fs)
