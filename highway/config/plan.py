"""What another configuration would change, before it changes anything: one line for each key.

The two are compared as they would be written down (`rendering.to_tree`), so that no key is forgotten, and each line
says from when on it counts. Some of them can't be had without a restart: they are left as they are, and said.

What a shorter retention would delete isn't known here: the storage engine is asked (`retention_changes`), and the
answer belongs in the plan, which `Plan.losses` then tells. So is whether there is anything to compact
(`compaction_changes`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from highway.config.listeners import is_open
from highway.config.rendering import to_tree

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from highway.config.models import Listener, Settings
    from highway.storage import Deletion, LogSettings

__all__ = ["Change", "Plan", "compaction_changes", "in_force", "make_plan", "opened_doors", "retention_changes"]

RESTART = "needs a restart"
NEW_CONNECTIONS = "for new connections"

# Keys of a topic entry -> from when on another value counts; the rest counts at once.
_TOPIC_EFFECTS = {
    "durability": "for new appends",
    "delay": RESTART,
    "segment_bytes": "for new segments",
    "flush_bytes": "for new frames",
    "compression": "for new frames",
    "compression_level": "for new frames",
    "cleanup": "within a minute; compact deletes what a newer message of the same topic replaces",
    "on_corruption": "from the next start on",
    "topic": "from the next message on; what is stored stays",
}

# The same of other keys, by the longest that they begin with; the rest counts at once.
_EFFECTS = {
    "data_dir": RESTART,
    "http": RESTART,
    "memory_budget": RESTART,
    "storage": RESTART,
    "auth.anonymous": NEW_CONNECTIONS,
    "limits.max_packet": NEW_CONNECTIONS,
    "limits.max_inflight": NEW_CONNECTIONS,
    "limits.receive_maximum": NEW_CONNECTIONS,
    "limits.max_keep_alive": NEW_CONNECTIONS,
    "limits.session_expiry": NEW_CONNECTIONS,
    "limits.write_buffer": NEW_CONNECTIONS,
}

# Keys of a listener that it can't change without closing its socket.
_SOCKET_KEYS = ("bind", "port", "websocket")


@dataclass(frozen=True, slots=True)
class Change:
    """One line: which key, what happens to it, and what is lost by it."""

    key: str
    text: str
    needs_restart: bool = False
    deletes: Deletion | None = None
    compacts: bool = False  # a log that holds messages: those that a newer one replaces are lost

    def __str__(self) -> str:
        return f"{self.key}: {self.text}"

    def to_json(self) -> dict[str, Any]:
        """The same for programs."""
        value = {"key": self.key, "change": self.text, "needs_restart": self.needs_restart}
        return value if self.deletes is None else value | {"deletes": self.deletes._asdict()}


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that would change, and what is warned of in the new configuration."""

    changes: tuple[Change, ...]
    warnings: tuple[str, ...] = ()

    @property
    def deletes(self) -> list[Deletion]:
        """What retention would delete."""
        return [change.deletes for change in self.changes if change.deletes is not None]

    @property
    def losses(self) -> list[Change]:
        """The changes by which stored messages are lost."""
        return [change for change in self.changes if change.deletes is not None or change.compacts]

    @property
    def waiting(self) -> list[str]:
        """The keys that wait for a restart."""
        return [change.key for change in self.changes if change.needs_restart]

    def lines(self) -> list[str]:
        """The plan for people."""
        return [str(change) for change in self.changes]

    def to_json(self) -> dict[str, Any]:
        """The plan for programs."""
        return {
            "changes": [change.to_json() for change in self.changes],
            "deletes_data": bool(self.losses),
            "needs_restart": self.waiting,
            "warnings": list(self.warnings),
        }


def retention_changes(old: Settings, new: Settings) -> list[LogSettings]:
    """The logs of which another retention may delete something: the storage engine has to be asked about these."""
    before = {log.name: log for log in old.logs}
    return [log for log in new.logs if log.name not in before or _may_delete(log, before[log.name])]


def _may_delete(new: LogSettings, old: LogSettings) -> bool:
    """Whether `new` keeps less than `old` does, by age or by size, or counts for other logs on the disk."""
    if new.per_topic != old.per_topic:
        return True
    pairs = ((new.retention_ms, old.retention_ms), (new.retention_bytes, old.retention_bytes))
    return any(bound is not None and (before is None or bound < before) for bound, before in pairs)


def compaction_changes(old: Settings, new: Settings) -> list[LogSettings]:
    """The logs that are compacted from now on, and so lose messages if they hold some."""
    before = {log.name: log.cleanup for log in old.logs}
    return [log for log in new.logs if log.cleanup == "compact" != before.get(log.name)]


def make_plan(
    old: Settings, new: Settings, deletions: Mapping[str, Deletion] | None = None, compacted: Collection[str] = ()
) -> Plan:
    """What `new` would change where `old` is in force.

    `deletions` are the storage engine's answer, by log; `compacted` names those of `compaction_changes` that hold
    messages.
    """
    before, after = to_tree(old), to_tree(new)
    changes = [
        *_listener_changes(before.pop("listeners"), after.pop("listeners")),
        *_content_changes(old, new),
        *_topic_changes(before.pop("topics"), after.pop("topics"), deletions or {}, compacted),
        *(_change(*difference) for difference in _differences(before, after, "")),
    ]
    return Plan(tuple(sorted(changes, key=lambda change: _rank(change.key))), new.warnings)


def in_force(old: Settings, new: Settings) -> Settings:
    """`new`, less what needs a restart: that stays as it is in `old`."""
    listeners = {listener.name: listener for listener in old.listeners}
    delays = {entry.log: entry.delay_ms for entry in old.broker.entries}
    return replace(
        new,
        data_dir=old.data_dir,
        http=old.http,
        http_token=old.http_token,
        storage=old.storage,
        listeners=tuple(_keep_socket(listeners.get(listener.name), listener) for listener in new.listeners),
        logs=tuple(replace(log, delay_ms=delays.get(log.name, log.delay_ms)) for log in new.logs),
        broker=replace(
            new.broker,
            entries=tuple(
                replace(entry, delay_ms=delays.get(entry.log, entry.delay_ms)) for entry in new.broker.entries
            ),
        ),
    )


def opened_doors(old: Settings, new: Settings, mixture: Settings) -> list[str]:
    """The listeners that anybody on the network could use by a `mixture`, as of `in_force`, and in neither of the two
    whole.

    Each configuration may be safe and a mixture of them not: a listener that moves to this machine only with a restart,
    and clients that need no password any more at once.
    """

    def open_in(settings: Settings) -> set[str]:
        return {item.name for item in settings.listeners if settings.broker.anonymous and is_open(item)}

    return sorted(open_in(mixture) - open_in(new) - open_in(old))


def _keep_socket(old: Listener | None, new: Listener) -> Listener:
    if old is None:
        return new
    tls = new.tls if (old.tls is None) == (new.tls is None) else old.tls
    return replace(new, host=old.host, port=old.port, websocket=old.websocket, tls=tls)


def _rank(key: str) -> int:
    """What loses or admits something stands first in a plan."""
    order = ("topics", "auth", "listeners", "insecure", "limits")
    head = key.partition(".")[0]
    return order.index(head) if head in order else len(order)


def _differences(before: Any, after: Any, key: str) -> Iterator[tuple[str, Any, Any]]:
    """(key, value before, value after) of all leaves that differ; None stands for a key that isn't there."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name in dict.fromkeys([*before, *after]):
            path = f"{key}.{name}" if key else name
            yield from _differences(before.get(name), after.get(name), path)
    elif before != after:
        yield key, before, after


def _change(key: str, before: Any, after: Any) -> Change:
    parts = key.split(".")
    heads = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    effect = next((_EFFECTS[head] for head in heads if head in _EFFECTS), "")
    return Change(key, _with(_step(before, after), effect), effect == RESTART)


def _step(before: Any, after: Any) -> str:
    """`1MiB -> 2MiB`; lists and sections are only said to differ, as they take more than a line."""
    if isinstance(before, list | dict) or isinstance(after, list | dict):
        if before is None or after is None:
            return "added" if before is None else "removed"
        return f"{len(before)} -> {len(after)} entries" if len(before) != len(after) else "changed"
    return f"{_word(before)} -> {_word(after)}"


def _word(value: Any) -> str:
    if value is None:
        return "nothing"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _with(text: str, effect: str) -> str:
    if not effect:
        return text
    return (
        f"{text}: {effect}"
        if effect == RESTART
        else f"{text} {effect}"
        if effect.startswith("for")
        else f"{text}: {effect}"
    )


def _listener_changes(before: dict[str, Any], after: dict[str, Any]) -> Iterator[Change]:
    gone = {_address(before[name]): name for name in before if name not in after}
    renamed = {name: gone[_address(new)] for name, new in after.items() if name not in before and _address(new) in gone}
    for name in dict.fromkeys([*before, *after]):
        key, old, new = f"listeners.{name}", before.get(name), after.get(name)
        if name in renamed:
            yield Change(key, f"was {renamed[name]}; its connections stay")
        elif old is None and new is not None:
            yield Change(key, f"added, on {new['bind']} port {new['port']}")
        elif new is None and name in renamed.values():
            continue
        elif new is None:
            yield Change(key, "removed: the connections that came in there are closed")
        elif old is not None:
            for path, was, will in _differences(old, new, ""):
                section_changes = path == "tls" and (was is None or will is None)
                if path in _SOCKET_KEYS or section_changes:
                    yield Change(f"{key}.{path}", f"{_step(was, will)}: {RESTART}", needs_restart=True)
                else:
                    yield Change(f"{key}.{path}", f"{_step(was, will)} for new handshakes")


def _address(section: dict[str, Any]) -> tuple[object, ...]:
    return (*(section.get(key) for key in _SOCKET_KEYS), "tls" in section)


def _content_changes(old: Settings, new: Settings) -> Iterator[Change]:
    """What has changed in files that the configuration only names."""
    before = {listener.name: listener.tls for listener in old.listeners}
    for listener in new.listeners:
        tls = before.get(listener.name)
        if tls is not None and listener.tls is not None and tls.digest != listener.tls.digest:
            yield Change(f"listeners.{listener.name}.tls", "certificates have changed for new handshakes")
    was, will = old.auth.passwords, new.auth.passwords
    if was is not None and will is not None and was.hashes != will.hashes:
        added, removed = will.hashes.keys() - was.hashes.keys(), was.hashes.keys() - will.hashes.keys()
        other = sum(will.hashes[user] != was.hashes[user] for user in will.hashes.keys() & was.hashes.keys())
        ending = ", whose connections end unless plugins know them" if removed else ""
        text = (
            f"{len(added)} users added, {len(removed)} removed{ending}, {other} with another password {NEW_CONNECTIONS}"
        )
        yield Change("auth.password_file", text)


def _topic_changes(
    before: Sequence[dict[str, Any]],
    after: Sequence[dict[str, Any]],
    deletions: Mapping[str, Deletion],
    compacted: Collection[str],
) -> Iterator[Change]:
    """Changes of the topic entries, which the name of the log identifies."""
    old = {entry["log"]: entry for entry in before}
    new = {entry["log"]: entry for entry in after}
    for log in dict.fromkeys([*old, *new]):
        key = f"topics.{log}"
        if log not in new:
            yield Change(key, "removed: the log takes no more messages; it can be read, and nothing of it is deleted")
            continue
        doomed = deletions.get(log)
        if log not in old:
            entry = new[log]
            added = Change(key, f"added: {entry['topic']} is kept as {entry['durability']}", compacts=log in compacted)
            if added.compacts:
                added = replace(added, text=f"{added.text}; what it holds is compacted")
            yield _with_deletion(added, doomed)
        for name, was, will in _differences(old.get(log, new[log]), new[log], ""):
            effect = _TOPIC_EFFECTS.get(name, "")
            change = Change(key, f"{name} {_with(_step(was, will), effect)}", effect == RESTART)
            if name in ("retention", "retention_bytes"):
                change, doomed = _with_deletion(change, doomed), None
            elif name == "cleanup":
                change = replace(change, compacts=log in compacted)
            yield change
        for name, deletion in deletions.items():
            if name.startswith(f"{log}/"):  # one topic's of an entry with `per_topic`
                yield _with_deletion(Change(key, name), deletion)
    kept = [log for log in old if log in new]
    if kept != [log for log in new if log in old]:
        order = ", ".join(new)
        yield Change("topics", f"another order ({order}): a topic may go to another log from the next message on")


def _with_deletion(change: Change, deletion: Deletion | None) -> Change:
    if deletion is None:
        return change
    count = deletion.segments
    what = f"{count} segment{'' if count == 1 else 's'}" if count else "what is in no segment yet"
    text = f"{change.text}: deletes {what}, offsets {deletion.from_offset}..{deletion.to_offset - 1}"
    return replace(change, text=text, deletes=deletion)
