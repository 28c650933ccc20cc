"""Columns of numbers, big-endian on the disk as everything there, and as the processor wants them in memory."""

from __future__ import annotations

import sys
from array import array

__all__ = ["from_big_endian", "to_big_endian"]


def to_big_endian(values: array[int]) -> bytes:
    """Return the bytes of `values`, which stay as they are."""
    if sys.byteorder == "little":
        values = values[:]
        values.byteswap()
    return values.tobytes()


def from_big_endian(typecode: str, data: bytes) -> array[int]:
    """Return the numbers of one of array's types in `data`."""
    values = array(typecode, data)
    if sys.byteorder == "little":
        values.byteswap()
    return values
