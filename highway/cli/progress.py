"""Progress on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["MessageCounter"]


class MessageCounter:
    """A running count of messages on standard error, as a context manager."""

    def __init__(self, what: str) -> None:
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn(f"{{task.completed:,.0f}} messages {what}"),
            TextColumn("{task.speed:,.0f}/s", style="dim"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
        )
        self._task = self._progress.add_task(what, total=None)

    def add(self, count: int) -> None:
        self._progress.advance(self._task, count)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._progress.stop()
