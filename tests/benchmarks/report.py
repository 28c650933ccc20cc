"""The report of a run: Markdown with figures, ratios, what is to be reached, machine, versions and settings; charts."""

from __future__ import annotations

import json
import os
import platform
import statistics
from typing import TYPE_CHECKING, NamedTuple

import psutil

from tests.benchmarks.charts import bar_chart
from tests.benchmarks.targets import RATIO_COLUMNS, TARGETS, ratio

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from highway.cli.load.disk import Disk
    from tests.benchmarks.peers import Peer, Running

__all__ = ["Results", "machine", "write_report"]

# group -> file of its chart, and which of its rows are on it
CHARTS = {
    "ingest": "ingest.svg",
    "fan-out": "fanout.svg",
    "catching up": "catching-up.svg",
    "latency, one in flight": "latency.svg",
}


class Cell(NamedTuple):
    """What the rounds of one row and broker gave, or why they gave nothing."""

    figures: list[float]
    failure: str

    @property
    def median(self) -> float | None:
        return statistics.median(self.figures) if self.figures else None


class Results:
    """Every figure of a run, by group, row and broker."""

    def __init__(self) -> None:
        self.cells: dict[tuple[str, str], dict[str, Cell]] = {}
        self.units: dict[tuple[str, str], str] = {}

    def add(self, group: str, row: str, unit: str, peer: str, figure: float | None, failure: str = "") -> None:
        """Add a figure, or why there is none."""
        self.units[group, row] = unit
        row_cells = self.cells.setdefault((group, row), {})
        cell = row_cells.get(peer, Cell([], ""))
        row_cells[peer] = Cell(cell.figures if figure is None else [*cell.figures, figure], failure or cell.failure)

    def failed(self, group: str, row: str, peer: str) -> bool:
        """Whether there was no figure: another try would only wait as long again."""
        cell = self.cells.get((group, row), {}).get(peer)
        return cell is not None and bool(cell.failure)

    def medians(self, group: str, row: str) -> dict[str, float]:
        """Broker -> median, where there is one."""
        cells = self.cells.get((group, row), {})
        return {peer: cell.median for peer, cell in cells.items() if cell.median is not None}

    def groups(self) -> dict[str, list[str]]:
        """Group -> its rows, in order."""
        found: dict[str, list[str]] = {}
        for group, row in self.cells:
            found.setdefault(group, []).append(row)
        return found

    def as_json(self) -> str:
        """Every figure of every round."""
        return json.dumps(
            [
                {"group": group, "row": row, "broker": peer, "figures": cell.figures, "failure": cell.failure}
                for (group, row), cells in self.cells.items()
                for peer, cell in cells.items()
            ],
            indent=1,
        )


def machine(disk: Disk) -> list[str]:
    """What it ran on, in lines of Markdown."""
    model = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:  # noqa: PTH123
            model = next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), model)
    except OSError:
        pass
    load = os.getloadavg()[0]
    return [
        f"- {len(os.sched_getaffinity(0))} processors ({model}), {psutil.virtual_memory().total / 2**30:.0f} GiB",
        f"- {platform.system()} {platform.release()}, Python {platform.python_version()}",
        f"- {disk.file_system}, 4 KiB synced in {disk.p50_ms:.2g} ms (p99 {disk.p99_ms:.2g} ms)",
        f"- load average at the start {load:.1f}: above a few tenths, others were at work here as well",
    ]


def write_report(
    folder: Path,
    results: Results,
    running: Sequence[Running],
    missing: dict[str, str],
    about: Sequence[str],
    rounds: int,
    scale: float,
) -> Path:
    """Write REPORT.md, its charts and every figure to `folder`; returns the report's path."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "charts").mkdir(exist_ok=True)
    peers = [each.peer for each in running]
    lines = ["# Highway beside others", "", *_opening(rounds, scale), "", *about, "", "## What is to be reached", ""]
    lines += _targets(results)
    for group, rows in results.groups().items():
        lines += ["", f"## {group.capitalize()}", ""]
        if group in CHARTS:
            chart = {row: results.medians(group, row) for row in rows}
            unit = results.units[group, rows[0]]
            text = bar_chart(group.capitalize(), [peer.name for peer in peers], chart, unit)
            (folder / "charts" / CHARTS[group]).write_text(text, encoding="utf-8")
            lines += [f"![{group}](charts/{CHARTS[group]})", ""]
        lines += _figures(results, group, rows, peers)
        if len(rows) and any(name == "mosquitto" or name.startswith("nats") for name in [peer.name for peer in peers]):
            lines += ["", "Ratios:", "", *_ratios(results, group, rows)]
    lines += _failures(results)
    lines += _brokers(running, missing)
    path = folder / "REPORT.md"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "figures.json").write_text(results.as_json() + "\n", encoding="utf-8")
    return path


def _opening(rounds: int, scale: float) -> list[str]:
    part = (
        "" if scale == 1 else f" **This run had {scale:g} of the full load: it shows that the rows work, and no more.**"
    )
    return [
        "Made by `make bench`: every broker on loopback of one machine, the generator on it too, in turns, so that a slow",
        f"minute meets all of them. Medians of {rounds} round{'s' if rounds > 1 else ''}.{part} Quote ratios, not figures.",
    ]


def _targets(results: Results) -> list[str]:
    lines = ["| | wanted | measured | |", "|---|---|---|---|"]
    for target in TARGETS:
        found = ratio(results.medians(target.group, target.row), target.mode, target.peer)
        sign = "at most" if target.at_most else "at least"
        if found is None:
            lines.append(f"| {target} | {sign} {target.wanted:g} | - | |")
            continue
        reached = found <= target.wanted if target.at_most else found >= target.wanted
        lines.append(f"| {target} | {sign} {target.wanted:g} | {found:.3g} | {'yes' if reached else '**no**'} |")
    return lines


def _figures(results: Results, group: str, rows: Sequence[str], peers: Sequence[Peer]) -> list[str]:
    lines = [f"| | {' | '.join(peer.name for peer in peers)} |", f"|---|{'---:|' * len(peers)}"]
    for row in rows:
        cells = results.cells[group, row]
        shown = [_shown(cells.get(peer.name), results.units[group, row]) for peer in peers]
        lines.append(f"| {row} | {' | '.join(shown)} |")
    return lines


def _shown(cell: Cell | None, unit: str) -> str:
    if cell is None:
        return ""
    if cell.median is None:
        return "none"
    text = f"{cell.median:,.0f}" if cell.median >= 100 else f"{cell.median:.3g}"
    return f"{text}{' ' if unit.isalpha() else ''}{unit}"


def _ratios(results: Results, group: str, rows: Sequence[str]) -> list[str]:
    lines = [
        f"| | {' | '.join(f'{mode} / {peer}' for mode, peer in RATIO_COLUMNS)} |",
        f"|---|{'---:|' * len(RATIO_COLUMNS)}",
    ]
    for row in rows:
        medians = results.medians(group, row)
        found = [ratio(medians, mode, peer) for mode, peer in RATIO_COLUMNS]
        lines.append(f"| {row} | {' | '.join('' if each is None else f'{each:.2f}' for each in found)} |")
    return lines


def _failures(results: Results) -> list[str]:
    found = [
        f"- {group}, {row}, {peer}: {cell.failure}"
        for (group, row), cells in results.cells.items()
        for peer, cell in cells.items()
        if cell.failure
    ]
    return ["", "## No figure", "", *found] if found else []


def _brokers(running: Sequence[Running], missing: dict[str, str]) -> list[str]:
    lines = [
        "",
        "## Brokers and their settings",
        "",
        "| | version | a QoS 1 message is acknowledged when it is | load |",
    ]
    lines.append("|---|---|---|---|")
    for each in running:
        peer = each.peer
        lines.append(f"| {peer.name} | {peer.version()} | {peer.promise} | {peer.share:g} |")
    lines += [f"| {name} | {reason} | | |" for name, reason in missing.items()]
    lines += [
        "",
        "Load: the part of the messages of a row that a broker gets, so that a slow one isn't waited for. nats-server and",
    ]
    lines += [
        "RabbitMQ store only while a session wants it: one that is offline does. Disk: without files of constant size, the"
    ]
    lines += ["journal of Highway and its reserve."]
    for each in running:
        for name, text in each.peer.settings(each.folder, each.port).items():
            shown = text.replace(str(each.folder), "FOLDER").strip()
            lines += ["", f"{each.peer.name}, `{name}`:", "", "```", shown, "```"]
    return lines
