"""Progress on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.text import Text

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["ByteBar", "CountBar", "MessageCounter"]


class _Speed(ProgressColumn):
    """Messages a second, once there is something to divide."""

    def render(self, task: Task) -> Text:
        return Text(f"{task.speed:,.0f}/s" if task.speed else "", style="dim")


class MessageCounter:
    """A running count of messages on standard error, as a context manager."""

    def __init__(self, what: str) -> None:
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn(f"{{task.completed:,.0f}} messages {what}"),
            _Speed(),
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


class _Bar:
    """A bar on standard error, as a context manager; it is gone when it ends, and the result stands alone."""

    def __init__(self, what: str, total: int, *columns: ProgressColumn) -> None:
        self._progress = Progress(
            TextColumn(what), BarColumn(), *columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True
        )
        self._task = self._progress.add_task(what, total=total)

    def add(self, count: int) -> None:
        self._progress.advance(self._task, count)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._progress.stop()


class ByteBar(_Bar):
    """A bar of bytes."""

    def __init__(self, what: str, total: int) -> None:
        super().__init__(what, total, DownloadColumn(), TransferSpeedColumn())


class CountBar(_Bar):
    """A bar of records, or of anything else that is counted."""

    def __init__(self, what: str, total: int) -> None:
        super().__init__(what, total, MofNCompleteColumn(), _Speed())
