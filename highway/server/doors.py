"""The listeners of the process: opened one by one at start, added and removed by a reload.

Owner: the event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .listening import Door, open_door

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from highway.config import Listener

    from .connection import Connection, Connections
    from .tls import TlsContexts

__all__ = ["Doors"]


class Doors:
    """Every open listener, by its name."""

    __slots__ = ("_connections", "_contexts", "_doors", "_say")

    def __init__(self, connections: Connections, contexts: TlsContexts, say: Callable[[str], None]) -> None:
        """`say` is told of each listener that opens."""
        self._connections = connections
        self._contexts = contexts
        self._say = say
        self._doors: dict[str, Door] = {}

    def __iter__(self) -> Iterator[Door]:
        return iter(self._doors.values())

    async def open(self, listeners: Iterable[Listener]) -> None:
        """Open `listeners`, in their order. HighwayError if one can't be; those before it stay open until `close`."""
        for listener in listeners:
            self._doors[listener.name] = door = await open_door(listener, self._connections, self._contexts)
            self._say(f"{door} ({listener.name})")

    async def change(self, listeners: Sequence[Listener]) -> Callable[[], None]:
        """Open those of `listeners` that are new; returns what closes those that are gone, and their connections.

        All or nothing: HighwayError if one can't be opened, and then none of them is.
        """
        wanted = {listener.name: listener for listener in listeners}
        gone = {door.address: name for name, door in self._doors.items() if name not in wanted}
        unknown = [listener for name, listener in wanted.items() if name not in self._doors]
        renamed = {item.name: gone[item.address] for item in unknown if item.address in gone}
        new = [listener for listener in unknown if listener.name not in renamed]
        try:
            await self.open(new)
        except BaseException:
            for listener in new:
                if (door := self._doors.pop(listener.name, None)) is not None:
                    door.close()
            raise

        def close_others() -> None:
            for name, before in renamed.items():
                self._doors[name] = self._doors.pop(before)
                for connection in self._came_in_at(before):
                    connection.listener = name
            for name in [name for name in self._doors if name not in wanted]:
                self._doors.pop(name).close()
                for connection in self._came_in_at(name):
                    connection.end()
            for name, door in self._doors.items():
                door.change(wanted[name])

        return close_others

    def _came_in_at(self, name: str) -> list[Connection]:
        return [connection for connection in self._connections.open if connection.listener == name]

    def close(self) -> None:
        """Stop listening everywhere; connections stay."""
        for door in self._doors.values():
            door.close()
