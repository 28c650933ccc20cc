"""Tables and times for people: rich on a terminal, plain columns in a pipe."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import click

from highway.log_lines import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["age", "number", "print_table", "size", "span"]

_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"))


def print_table(headers: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[str] = ()) -> None:
    """Print `rows` under `headers`; the columns in `right` are aligned there."""
    shown = [[printable(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        _print_rich(headers, shown, right)
        return
    widths = [max(map(len, column)) for column in zip(headers, *shown, strict=True)]
    for row in (headers, *shown):
        cells = (
            cell.rjust(width) if header in right else cell.ljust(width)
            for header, cell, width in zip(headers, row, widths, strict=True)
        )
        click.echo("  ".join(cells).rstrip())


def _print_rich(headers: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str]) -> None:
    from rich.box import SIMPLE_HEAD  # noqa: PLC0415  only where there is a terminal
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for header in headers:
        table.add_column(header, justify="right" if header in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    Console().print(table)


def number(value: int) -> str:
    """`1,234`."""
    return f"{value:,}"


def size(value: float) -> str:
    """`640 B`, `12.5 KiB`, `3.0 GiB`."""
    if value < 1024:
        return f"{value:.0f} B"
    for unit in ("KiB", "MiB", "GiB"):
        value /= 1024
        if value < 1024:
            return f"{value:.1f} {unit}"
    return f"{value / 1024:.1f} TiB"


def span(seconds: float) -> str:
    """`0.4 s`, `12 s`, `3 min`, `5 h`, `2 d`: in one unit, as it is read at a glance."""
    for length, unit in _UNITS:
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"


def age(time_ms: int | None) -> str:
    """How long ago that was; "-" for None."""
    return "-" if time_ms is None else span(max(0.0, time.time() - time_ms / 1000))
