"""Which subscriptions does a topic name reach: an index of topic filters.

Filters without a wildcard, the common case, are one dict look-up. The others hang in a trie with one node per level,
so that a match costs by the depth of the topic and the number of hits, never by the number of filters
(field report 69). Nothing recurses: a filter may have as many levels as the protocol layer lets through.

The owner is the event loop. Filters must be valid: the protocol layer checks them when it reads SUBSCRIBE.
"""

from __future__ import annotations

from typing import Generic, TypeVar

__all__ = ["FilterTrie"]

T = TypeVar("T")

# One subscription as `match` returns it: filter, key (the subscriber), value (its options).
Entry = tuple[bytes, object, T]
Entries = dict[object, tuple[bytes, object, T]]


class _Node(Generic[T]):
    """One level of the filters that pass here; every field is None while unused, as most nodes have one child."""

    __slots__ = ("children", "entries", "hash_entries", "plus")

    def __init__(self) -> None:
        self.children: dict[bytes, _Node[T]] | None = None  # below a literal level
        self.plus: _Node[T] | None = None  # below a `+`
        self.entries: Entries[T] | None = None  # filters that end here
        self.hash_entries: Entries[T] | None = None  # filters that end in `#` below this level

    def is_empty(self) -> bool:
        return not (self.children or self.plus or self.entries or self.hash_entries)


class FilterTrie(Generic[T]):
    """The filters of all online subscriptions; `len()` is the number of (filter, key) pairs."""

    __slots__ = ("_exact", "_length", "_root")

    def __init__(self) -> None:
        self._exact: dict[bytes, Entries[T]] = {}
        self._root: _Node[T] = _Node()
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def add(self, topic_filter: bytes, key: object, value: T) -> bool:
        """Put `value` under (filter, key), replacing what was there; True if the pair is new."""
        if b"+" in topic_filter or b"#" in topic_filter:
            entries = self._wildcard_entries(topic_filter)
        else:
            entries = self._exact.setdefault(topic_filter, {})
        is_new = key not in entries
        entries[key] = (topic_filter, key, value)
        self._length += is_new
        return is_new

    def _wildcard_entries(self, topic_filter: bytes) -> Entries[T]:
        """The entries of `topic_filter`, with the nodes on the way made if missing."""
        node = self._root
        for level in topic_filter.split(b"/"):
            if level == b"#":
                if node.hash_entries is None:
                    node.hash_entries = {}
                return node.hash_entries
            if level == b"+":
                if node.plus is None:
                    node.plus = _Node()
                node = node.plus
            else:
                if node.children is None:
                    node.children = {}
                child = node.children.get(level)
                if child is None:
                    child = node.children[level] = _Node()
                node = child
        if node.entries is None:
            node.entries = {}
        return node.entries

    def remove(self, topic_filter: bytes, key: object) -> bool:
        """Take (filter, key) out, and every node that only it needed; False if it isn't there."""
        if b"+" in topic_filter or b"#" in topic_filter:
            removed = self._remove_wildcard(topic_filter, key)
        else:
            entries = self._exact.get(topic_filter)
            removed = entries is not None and entries.pop(key, None) is not None
            if removed and not entries:
                del self._exact[topic_filter]
        self._length -= removed
        return removed

    def _remove_wildcard(self, topic_filter: bytes, key: object) -> bool:
        levels = topic_filter.split(b"/")
        ends_in_hash = levels[-1] == b"#"
        if ends_in_hash:
            levels.pop()
        path: list[_Node[T]] = [self._root]
        for level in levels:
            node = path[-1]
            child = node.plus if level == b"+" else node.children.get(level) if node.children else None
            if child is None:
                return False
            path.append(child)
        node = path[-1]
        entries = node.hash_entries if ends_in_hash else node.entries
        if entries is None or entries.pop(key, None) is None:
            return False
        if not entries:
            if ends_in_hash:
                node.hash_entries = None
            else:
                node.entries = None
        self._prune(path, levels)
        return True

    @staticmethod
    def _prune(path: list[_Node[T]], levels: list[bytes]) -> None:
        """Unlink the empty nodes at the end of `path`; `levels[i]` leads from `path[i]` to `path[i + 1]`."""
        for depth in range(len(levels), 0, -1):
            if not path[depth].is_empty():
                return
            parent, level = path[depth - 1], levels[depth - 1]
            if level == b"+":
                parent.plus = None
            elif parent.children is not None:
                del parent.children[level]
                if not parent.children:
                    parent.children = None

    def match(self, topic_name: bytes) -> list[Entry[T]]:
        """Every (filter, key, value) whose filter matches the topic name, in no particular order.

        A key that subscribed with several matching filters is returned once for each.
        """
        exact = self._exact.get(topic_name)
        hits: list[Entry[T]] = list(exact.values()) if exact else []
        levels = topic_name.split(b"/")
        frontier = [self._root]
        if topic_name.startswith(b"$"):
            # [MQTT-4.7.2-1] A wildcard at the first level doesn't match a name that starts with `$`.
            frontier = _literal(self._root, levels.pop(0))
        for level in levels:
            if not frontier:
                return hits
            frontier = _step(frontier, level, hits)
        for node in frontier:
            # `a/#` matches `a` too: the `#` stands for the parent level and what is below it.
            if node.hash_entries:
                hits.extend(node.hash_entries.values())
            if node.entries:
                hits.extend(node.entries.values())
        return hits


def _literal(node: _Node[T], level: bytes) -> list[_Node[T]]:
    child = node.children.get(level) if node.children else None
    return [] if child is None else [child]


def _step(frontier: list[_Node[T]], level: bytes, hits: list[Entry[T]]) -> list[_Node[T]]:
    """The nodes one level further on; the filters that end in `#` on the way go to `hits`."""
    following: list[_Node[T]] = []
    for node in frontier:
        if node.hash_entries:
            hits.extend(node.hash_entries.values())
        if node.children and (child := node.children.get(level)) is not None:
            following.append(child)
        if node.plus is not None:
            following.append(node.plus)
    return following
