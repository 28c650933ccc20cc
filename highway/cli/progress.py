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


class _Display:
    """Something that counts on standard error, as a context manager."""

    def __init__(self, what: str, total: int | None, *columns: ProgressColumn, transient: bool = False) -> None:
        self._progress = Progress(*columns, console=Console(stderr=True), transient=transient)
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


class MessageCounter(_Display):
    """A running count of messages."""

    def __init__(self, what: str) -> None:
        count = TextColumn(f"{{task.completed:,.0f}} messages {what}")
        super().__init__(what, None, SpinnerColumn(), count, _Speed(), TimeElapsedColumn())


class _Bar(_Display):
    """A bar; it is gone when it ends, and the result stands alone."""

    def __init__(self, what: str, total: int, *columns: ProgressColumn) -> None:
        super().__init__(what, total, TextColumn(what), BarColumn(), *columns, TimeRemainingColumn(), transient=True)


class ByteBar(_Bar):
    """A bar of bytes."""

    def __init__(self, what: str, total: int) -> None:
        super().__init__(what, total, DownloadColumn(), TransferSpeedColumn())


class CountBar(_Bar):
    """A bar of records, or of anything else that is counted."""

    def __init__(self, what: str, total: int) -> None:
        super().__init__(what, total, MofNCompleteColumn(), _Speed())
