"""How far an export has come, in a small file beside it: with it, the same command goes on where it was cut off.

`FILE.partial` holds what is exported so far, and `FILE.partial.state` says how much of it counts. What is partial is
synced before the state names it, and the state is replaced as a whole, so that a kill or a power cut costs the last
chunk at most.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from highway.errors import HighwayError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["ProgressFile", "Reached", "incomplete", "partial_of"]

_VERSION = 1


@dataclass(slots=True)
class Reached:
    """The range of an export, resolved at its first start, and where it is."""

    from_offset: int
    until_offset: int  # exclusive
    next_offset: int
    records: int = 0
    position: int = 0  # what the sink counts: bytes of the partial file, or its parts
    lost: list[tuple[int, int, str]] = field(default_factory=list)  # from, to (exclusive), why it can't be read


def partial_of(target: Path) -> Path:
    """Return where the unfinished export is."""
    return target.with_name(target.name + ".partial")


def incomplete(partial: Path) -> HighwayError:
    """Return what to raise where less is there than the state says."""
    return HighwayError(f"{partial} holds less than its state file says", "begin again with --restart")


class ProgressFile:
    """The state of the export to `target`; `asked` is what was asked for, as it has to be asked again."""

    def __init__(self, target: Path, asked: dict[str, Any]) -> None:
        self._path = target.with_name(target.name + ".partial.state")
        self._asked = asked

    def load(self) -> Reached | None:
        """Return where the export was cut off, None if it is a new one. HighwayError: it was another export."""
        try:
            text = self._path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        try:
            found = json.loads(text)
            asked, reached = found["asked"], Reached(**found["reached"])
            reached.lost = [(int(start), int(end), str(reason)) for start, end, reason in reached.lost]
        except (ValueError, TypeError, KeyError) as error:
            raise HighwayError(f"{self._path} can't be read: {error}", "begin again with --restart") from error
        if found.get("version") != _VERSION or asked != self._asked:
            other = [name for name in self._asked if asked.get(name) != self._asked[name]]
            raise HighwayError(
                f"{self._path} belongs to another export: {', '.join(other) or 'its version'} differ",
                "give the same options to go on with it, or --restart to begin again",
            )
        return reached

    def save(self, reached: Reached) -> None:
        """Make it durable; what it counts must be durable before."""
        temporary = self._path.with_name(self._path.name + ".new")
        with temporary.open("w", encoding="utf-8") as file:
            json.dump({"version": _VERSION, "asked": self._asked, "reached": asdict(reached)}, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self._path)

    def remove(self) -> None:
        """Forget it: the export is complete, or begins again."""
        self._path.unlink(missing_ok=True)
