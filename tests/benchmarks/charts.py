"""Bar charts as SVG, by hand: one group of bars for each row, one bar for each broker, on a logarithmic scale."""

from __future__ import annotations

import math
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["bar_chart"]

WIDTH = 900
LABELS = 250  # to the left of the bars
FIGURES = 90  # to the right
BAR, GAP, TOP = 13, 12, 64
# Told apart by those who don't see red from green, too (Okabe and Ito).
COLOURS = ["#0072B2", "#56B4E9", "#009E73", "#D55E00", "#E69F00", "#F0E442", "#CC79A7", "#999999"]


def bar_chart(title: str, series: Sequence[str], rows: Mapping[str, Mapping[str, float]], unit: str) -> str:
    """The chart of row -> broker -> figure; a broker without a figure has no bar."""
    figures = [figure for row in rows.values() for figure in row.values() if figure > 0]
    low = 10 ** math.floor(math.log10(min(figures))) if figures else 1
    high = 10 ** math.ceil(math.log10(max(figures) * 1.01)) if figures else 10
    reach = max(math.log10(high / low), 1)
    parts: list[str] = []
    y = TOP
    for name, row in rows.items():
        shown = [each for each in series if row.get(each, 0) > 0]
        parts.append(_text(LABELS - 10, y + len(shown) * BAR / 2 + 4, name, anchor="end"))
        for each in shown:
            length = (WIDTH - LABELS - FIGURES) * math.log10(row[each] / low) / reach
            colour = COLOURS[series.index(each) % len(COLOURS)]
            parts.append(
                f'<rect x="{LABELS}" y="{y}" width="{max(length, 1):.1f}" height="{BAR - 2}" fill="{colour}">'
                f"<title>{escape(each)}: {row[each]:,.4g} {escape(unit)}</title></rect>"
            )
            parts.append(_text(LABELS + max(length, 1) + 5, y + BAR - 3, f"{_short(row[each])}{unit}", size=10))
            y += BAR
        y += GAP
    legend = []
    x = 10
    for index, each in enumerate(series):
        legend.append(f'<rect x="{x}" y="34" width="10" height="10" fill="{COLOURS[index % len(COLOURS)]}"/>')
        legend.append(_text(x + 14, 43, each, size=11))
        x += 26 + 7 * len(each)
    size = f'width="{WIDTH}" height="{y}" viewBox="0 0 {WIDTH} {y}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" role="img">',
            f'<rect width="{WIDTH}" height="{y}" fill="white"/>',
            _text(10, 22, f"{title} (logarithmic scale)", size=15),
            *legend,
            *parts,
            "</svg>\n",
        ]
    )


def _text(x: float, y: float, text: str, *, size: int = 12, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="#222">{escape(text)}</text>'


def _short(figure: float) -> str:
    for limit, letter in ((1e6, "M"), (1e3, "k")):
        if figure >= limit:
            return f"{figure / limit:.3g}{letter}"
    return f"{figure:.3g}"
