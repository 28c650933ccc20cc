"""The retained messages: one value per topic name, found by topic filter.

A SUBSCRIBE must cost by the depth of its filter and by what it hits, not by how much is retained (field report 69:
100,000 retained topics, a filter that matches none of them). Hence a trie of the topic names. Its leaves are the
topic names themselves, hung at the first level where a name has no neighbour: most stores are wide and shallow
(`device/<id>/status`), and so need no node per name.

The owner is the event loop. Values are whatever the broker keeps; `size` tells how many bytes one counts for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["RetainedStore"]

T = TypeVar("T")


class _Node:
    """The topic names that share the levels down to here, and the one that ends here."""

    __slots__ = ("children", "topic_name")

    def __init__(self) -> None:
        self.children: dict[bytes, _Node | bytes] = {}  # bytes: the only topic name below that level
        self.topic_name: bytes | None = None


class RetainedStore(Generic[T]):
    """Topic name to value, with look-up by filter; `len()` is the number of topics."""

    __slots__ = ("_bytes", "_root", "_size", "_values")

    def __init__(self, size: Callable[[T], int] | None = None) -> None:
        self._size: Callable[[Any], int] = len if size is None else size
        self._values: dict[bytes, T] = {}
        self._root = _Node()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._values)

    @property
    def size_bytes(self) -> int:
        """Bytes of all topic names and values."""
        return self._bytes

    def get(self, topic_name: bytes) -> T | None:
        return self._values.get(topic_name)

    def set(self, topic_name: bytes, value: T) -> None:
        """Keep `value` as the retained message of `topic_name`, in place of the one before."""
        before = self._values.get(topic_name)
        if before is None:
            self._insert(topic_name)
            self._bytes += len(topic_name)
        else:
            self._bytes -= self._size(before)
        self._values[topic_name] = value
        self._bytes += self._size(value)

    def delete(self, topic_name: bytes) -> bool:
        """Forget the retained message of `topic_name`; False if there is none."""
        value = self._values.pop(topic_name, None)
        if value is None:
            return False
        self._bytes -= len(topic_name) + self._size(value)
        self._unlink(topic_name)
        return True

    def _insert(self, topic_name: bytes) -> None:
        node = self._root
        levels = topic_name.split(b"/")
        for depth, level in enumerate(levels):
            child = node.children.get(level)
            if child is None:
                node.children[level] = topic_name
                return
            if isinstance(child, bytes):
                # Two names share this level now: the older one moves a level down.
                child = node.children[level] = self._hang(child, depth + 1)
            node = child
        node.topic_name = topic_name

    @staticmethod
    def _hang(topic_name: bytes, depth: int) -> _Node:
        """A new node at `depth` levels below the root that holds `topic_name` alone."""
        node = _Node()
        levels = topic_name.split(b"/", depth + 1)
        if len(levels) > depth:
            node.children[levels[depth]] = topic_name
        else:
            node.topic_name = topic_name
        return node

    def _unlink(self, topic_name: bytes) -> None:
        levels = topic_name.split(b"/")
        path = [self._root]
        for level in levels:
            child = path[-1].children[level]
            if isinstance(child, bytes):
                del path[-1].children[level]
                break
            path.append(child)
        else:
            path[-1].topic_name = None
        for depth in range(len(path) - 1, 0, -1):
            if path[depth].children or path[depth].topic_name is not None:
                return
            del path[depth - 1].children[levels[depth - 1]]

    def match(self, topic_filter: bytes) -> Iterator[tuple[bytes, T]]:
        """Yield (topic, value) for each retained message that the filter matches.

        The names are those at the time of the call and the values those at the time of the step: the caller may stop
        and go on while messages come in. A name deleted in between is left out.
        """
        return self._values_of(self._topics(topic_filter))

    def _values_of(self, topics: list[bytes]) -> Iterator[tuple[bytes, T]]:
        for topic in topics:
            value = self._values.get(topic)
            if value is not None:
                yield topic, value

    def _topics(self, topic_filter: bytes) -> list[bytes]:
        if b"+" not in topic_filter and b"#" not in topic_filter:
            return [topic_filter] if topic_filter in self._values else []
        levels = topic_filter.split(b"/")
        hits: list[bytes] = []
        frontier: list[_Node] = [self._root]
        for depth, level in enumerate(levels):
            if level == b"#":
                _collect(frontier, hits, skip_dollar=depth == 0)
                return hits
            following: list[_Node] = []
            for node in frontier:
                for child in _children(node, level, skip_dollar=depth == 0):
                    if not isinstance(child, bytes):
                        following.append(child)
                    elif _rest_matches(levels, child, depth + 1):
                        hits.append(child)
            if not following:
                return hits
            frontier = following
        hits.extend(node.topic_name for node in frontier if node.topic_name is not None)
        return hits


def _children(node: _Node, level: bytes, *, skip_dollar: bool) -> list[_Node | bytes]:
    """What hangs below `node` at a filter's `level`, which may be `+`."""
    if level != b"+":
        child = node.children.get(level)
        return [] if child is None else [child]
    if skip_dollar:
        # [MQTT-4.7.2-1] A wildcard at the first level doesn't match a name that starts with `$`.
        return [child for name, child in node.children.items() if not name.startswith(b"$")]
    return list(node.children.values())


def _collect(frontier: list[_Node], hits: list[bytes], *, skip_dollar: bool) -> None:
    """Add to `hits` every topic name at and below the nodes."""
    stack = frontier
    while stack:
        node = stack.pop()
        if node.topic_name is not None:
            hits.append(node.topic_name)
        for child in _children(node, b"+", skip_dollar=skip_dollar):
            if isinstance(child, bytes):
                hits.append(child)
            else:
                stack.append(child)
        skip_dollar = False


def _rest_matches(levels: list[bytes], topic: bytes, depth: int) -> bool:
    """Whether the filter's levels from `depth` on match those of a topic name that matched so far."""
    names = topic.split(b"/")
    for position in range(depth, len(levels)):
        level = levels[position]
        if level == b"#":
            return True
        if position >= len(names) or (level not in (b"+", names[position])):
            return False
    return len(names) == len(levels)
