"""What stands at the end of each command's help: exit codes and examples that can be pasted.

A command whose own text has them already needs nothing here. `tests/cli/test_main.py` sees to it that none has neither.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import click

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["MANUAL", "Page", "add_pages"]


class Page(NamedTuple):
    """The end of a help text; "" for what the command's own text says."""

    examples: str
    exits: str = ""


_BROKER = "1 when no broker runs on the data directory"
_CONNECTION = "1 when the broker can't be reached or goes away, 6 when it refuses"

MANUAL: dict[str, Page] = {
    "acl import": Page(
        "highway acl import /etc/mosquitto/acl > auth.yaml", "0, also with rules left out; 1 when FILE can't be read."
    ),
    "acl test": Page(
        "highway acl test -c highway.yaml alice subscribe 'highway/#'",
        "0 when it is allowed, 2 for a wrong configuration, 6 when it is denied.",
    ),
    "backup create": Page("highway backup create /backup/2026-11-30\nhighway backup create --copy /mnt/usb/highway"),
    "backup restore": Page("highway backup restore /backup/2026-11-30 --data-dir /var/lib/highway"),
    "backup verify": Page("highway backup verify /backup/2026-11-30"),
    "bench disk": Page("highway bench disk .", "0, or 1 when the directory can't be written."),
    "bench fanout": Page("highway bench fanout --subscribers 100", f"0, {_CONNECTION}."),
    "bench publish": Page("highway bench publish\nhighway bench publish --json", f"0, {_CONNECTION}."),
    "bench replay": Page("highway bench replay", f"0, {_CONNECTION}."),
    "completion": Page('eval "$(highway completion bash)"', "0, or 2 for another shell."),
    "config init": Page("highway config init /etc/highway"),
    "config schema": Page("", "0."),
    "export csv": Page(
        "highway export csv telemetry --from 7d > week.csv",
        "0, 1 when it can't be written, 3 when there is no such log, 5 when something couldn't be read.",
    ),
    "export jsonl": Page(
        "highway export jsonl telemetry --from 7d > week.jsonl",
        "0, 1 when it can't be written, 3 when there is no such log, 5 when something couldn't be read.",
    ),
    "export parquet": Page(
        "highway export parquet telemetry --from 7d -o week.parquet",
        "0, 1 when it can't be written, 3 when there is no such log, 5 when something couldn't be read.",
    ),
    "fetch": Page("highway fetch highway/A1/telemetry 81233 > message.json"),
    "log compact": Page("highway log compact state\nhighway log compact state --apply", ""),
    "log dump": Page("highway log dump telemetry --from -10\nhighway log dump telemetry --topic 'highway/A1/#' --json"),
    "log gaps": Page(
        "highway log gaps\nhighway log gaps telemetry --json", "0, also with gaps; 3 when there is no such log."
    ),
    "log inspect": Page("highway log inspect telemetry"),
    "log repair": Page("highway log repair\nhighway log repair --apply --data-dir /var/lib/highway"),
    "log verify": Page("highway log verify\nhighway log verify telemetry control"),
    "pub": Page(
        "highway pub -t highway/A1/control -m open -q 1\n"
        "highway pub -t highway/A1/photo -f photo.jpg -q 1\n"
        "tail -f readings.txt | highway pub -t highway/A1/telemetry -l -q 1",
        f"0, {_CONNECTION}, 4 when an acknowledgement doesn't come.",
    ),
    "serve": Page(
        "highway serve\nhighway serve -c /etc/highway/highway.yaml\nhighway serve --listen 127.0.0.1:1884 --no-http",
        "0 after a signal, 1 when it can't start (a port, the data directory), 2 when the configuration is wrong, "
        "5 when a log is damaged and has on_corruption: refuse, 74 when the disk failed.",
    ),
    "sessions drop": Page("highway sessions drop dashboard", f"0, {_BROKER}, 3 when there is no such session."),
    "sessions list": Page("highway sessions list\nhighway sessions list --json | jq .lag", f"0, {_BROKER}."),
    "sessions reset": Page("highway sessions reset dashboard --to 2h\nhighway sessions reset dashboard --to earliest"),
    "sessions show": Page("highway sessions show dashboard", f"0, {_BROKER}, 3 when there is no such session."),
    "status": Page("highway status\nhighway status --json -c /etc/highway/highway.yaml"),
    "sub": Page("highway sub -t 'highway/#' -v\nhighway sub -t 'highway/+/telemetry' --from 2h -C 100 --json"),
    "users add": Page(
        "highway users add alice --file passwd\ncat password | highway users add alice -c highway.yaml",
        "0, 1 when the file can't be written, 2 for a name or password that can't be, 6 when there is such a user.",
    ),
    "users list": Page("highway users list -c highway.yaml", "0, 2 when no file is named, 6 for a file with faults."),
    "users passwd": Page(
        "highway users passwd alice --file passwd", "0, 1 when the file can't be written, 3 when there is no such user."
    ),
    "users rm": Page(
        "highway users rm alice --file passwd", "0, 1 when the file can't be written, 3 when there is no such user."
    ),
    "topics": Page("highway topics\nhighway topics --json | jq '{log, bytes}'"),
}


def add_pages(command: click.Command, words: Sequence[str]) -> click.Command:
    """Put the pages of `command`, or of every command of a group, at the end of their help; returns `command`."""
    if isinstance(command, click.Group):
        for name, below in command.commands.items():
            add_pages(below, [*words, name])
        return command
    page = MANUAL.get(" ".join(words))
    if page is not None and command.epilog is None:
        parts = [] if not page.exits else [f"Exit codes: {page.exits}"]
        if page.examples:
            lines = "".join(f"\n  {line}" for line in page.examples.splitlines())
            parts.append(f"\b\nExamples:{lines}")
        command.epilog = "\n\n".join(parts)
    return command
