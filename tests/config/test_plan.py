"""The plan of a reload: a line for each key, with what it deletes and what needs a restart."""

from __future__ import annotations

import pytest

from highway.config.loading import Overrides, load_settings
from highway.config.plan import compaction_changes, in_force, make_plan, opened_doors, retention_changes
from highway.config.rendering import to_tree
from highway.storage import Deletion

BASE = """
listeners: {local: {port: 1}, web: {port: 2, websocket: /mqtt}}
topics:
  - {topic: a/+, log: telemetry, durability: SAFE, retention: 7d}
  - {topic: b/#, log: control, retention_bytes: 1GiB}
"""


@pytest.fixture
def load(tmp_path):
    def load(text):
        path = tmp_path / "c.yaml"
        path.write_text(text)
        return load_settings(path, environ={}, overrides=Overrides())

    return load


@pytest.fixture
def plan(load):
    def plan(*edits, deletions=None, compacted=(), base=BASE):
        text = base
        for before, after in edits:
            assert before in text
            text = text.replace(before, after)
        return make_plan(load(base), load(text), deletions, compacted)

    return plan


@pytest.mark.parametrize(
    ("before", "after", "lines"),
    [
        ("SAFE", "FAST", ["topics.telemetry: durability SAFE -> FAST for new appends"]),
        ("7d", "1d", ["topics.telemetry: retention 7d -> 1d"]),
        ("1GiB", "2GiB", ["topics.control: retention_bytes 1GiB -> 2GiB"]),
        ("port: 1}", "port: 3}", ["listeners.local.port: 1 -> 3: needs a restart"]),
        ("port: 1}", "port: 1, bind: '::1'}", ["listeners.local.bind: 127.0.0.1 -> ::1: needs a restart"]),
        (", websocket: /mqtt", "", ["listeners.web.websocket: /mqtt -> nothing: needs a restart"]),
        (
            ", web: {port: 2, websocket: /mqtt}",
            ", six: {bind: '::1', port: 9}",
            [
                "listeners.web: removed: the connections that came in there are closed",
                "listeners.six: added, on ::1 port 9",
            ],
        ),
        ("web: {port: 2", "other: {port: 2", ["listeners.other: was web; its connections stay"]),
        ("retention: 7d", "retention: 7d, delay: 5s", ["topics.telemetry: delay 0s -> 5s: needs a restart"]),
        (
            "topic: a/+",
            "topic: a/#",
            ["topics.telemetry: topic a/+ -> a/#: from the next message on; what is stored stays"],
        ),
        (
            "  - {topic: b/#, log: control, retention_bytes: 1GiB}\n",
            "",
            ["topics.control: removed: the log takes no more messages; it can be read, and nothing of it is deleted"],
        ),
        ("topics:\n", "topics:\n  - {topic: c, log: c}\n", ["topics.c: added: c is kept as BALANCED"]),
        ("listeners", "data_dir: /x\nlisteners", None),
        (
            "listeners",
            "limits: {max_packet: 2MiB, max_connections: 5}\nlisteners",
            ["limits.max_connections: 10000 -> 5", "limits.max_packet: 1MiB -> 2MiB for new connections"],
        ),
        ("listeners", "logging: {level: debug}\nlisteners", ["logging.level: info -> debug"]),
        ("listeners", "http: {port: 5}\nlisteners", ["http: added: needs a restart"]),
        (
            "listeners",
            "auth: {anonymous: true, acl: [{allow: publish, topic: a}]}\nlisteners",
            ["auth.acl: added"],
        ),
        (
            "listeners",
            "storage: {max_bytes: 5GiB}\nlisteners",
            ["storage.max_bytes: unlimited -> 5GiB: needs a restart"],
        ),
        ("\n", "\n", []),
    ],
)
def test_each_key_that_changes_is_a_line(before, after, lines, plan, tmp_path):
    found = plan((before, after)).lines()
    if lines is None:
        lines = [f"data_dir: {tmp_path}/highway-data -> /x: needs a restart"]
    assert found == lines


def test_what_a_shorter_retention_deletes_is_part_of_its_line(plan):
    doomed = Deletion("telemetry", 3, 81234, 999, 0, 81234)
    found = plan(("7d", "1d"), deletions={"telemetry": doomed})
    assert found.lines() == ["topics.telemetry: retention 7d -> 1d: deletes 3 segments, offsets 0..81233"]
    assert found.deletes == [doomed]
    assert found.to_json()["deletes_data"]
    assert found.to_json()["changes"][0]["deletes"]["to_offset"] == 81234
    one = plan(("7d", "1d"), deletions={"telemetry": doomed._replace(segments=1)})
    assert "deletes 1 segment, " in one.lines()[0]


def test_to_compact_what_is_stored_is_a_loss(load, plan):
    edit = ("retention: 7d", "cleanup: compact, retention: 7d")
    assert not plan(edit).to_json()["deletes_data"]
    found = plan(edit, compacted={"telemetry"})
    assert found.to_json()["deletes_data"]
    assert [str(change) for change in found.losses] == found.lines()
    assert [log.name for log in compaction_changes(load(BASE), load(BASE.replace(*edit)))] == ["telemetry"]
    assert compaction_changes(load(BASE.replace(*edit)), load(BASE)) == []
    assert compaction_changes(load(BASE.replace(*edit)), load(BASE.replace(*edit))) == []
    again = plan(("log: control", "log: b, cleanup: compact"), compacted={"b"})
    assert [change.key for change in again.losses] == ["topics.b"]


def test_each_log_of_an_entry_per_topic_has_its_deletion(plan):
    base = "topics: [{topic: a/#, log: a1, per_topic: true}]\n"
    doomed = {f"a1/{topic}": Deletion(f"a1/{topic}", 2, 5, 9, 0, 5) for topic in ("a/x", "a/y")}
    found = plan(("per_topic: true", "per_topic: true, retention: 1d"), base=base, deletions=doomed)
    assert found.lines() == [
        "topics.a1: retention 7d -> 1d",
        "topics.a1: a1/a/x: deletes 2 segments, offsets 0..4",
        "topics.a1: a1/a/y: deletes 2 segments, offsets 0..4",
    ]
    assert found.deletes == [*doomed.values()]


def test_the_order_of_entries_is_a_change(plan):
    entries = BASE.partition("topics:\n")[2].splitlines(keepends=True)
    found = plan(("".join(entries), "".join(reversed(entries))))
    assert found.lines() == [
        "topics: another order (control, telemetry, other): a topic may go to another log from the next message on"
    ]


@pytest.mark.parametrize(
    ("before", "after", "asked"),
    [
        ("7d", "6d", ["telemetry"]),
        ("7d", "8d", []),
        ("retention: 7d", "retention: unlimited", []),
        ("retention: 7d", "retention: 8d, retention_bytes: 1GiB", ["telemetry"]),
        ("1GiB", "512MiB", ["control"]),
        ("1GiB", "2GiB", []),
        ("1GiB", "2GiB, retention: 1d", ["control"]),
        ("SAFE", "FAST", []),
        ("log: telemetry", "log: telemetry, per_topic: true", ["telemetry"]),
        ("log: control", "log: new", ["new"]),
    ],
)
def test_only_logs_of_which_a_retention_may_delete_more_are_asked_about(load, before, after, asked):
    assert before in BASE
    assert [log.name for log in retention_changes(load(BASE), load(BASE.replace(before, after)))] == asked


def test_what_needs_a_restart_stays_and_the_rest_counts(load, plan):
    old = load(BASE)
    new = load(
        BASE.replace("port: 1}", "port: 3, websocket: /x}").replace("7d", "8d, delay: 5s").replace("/mqtt", "/other")
        + "data_dir: /x\nhttp: {port: 7}\nmemory_budget: 2MiB\nlimits: {max_connections: 5}\n"
    )
    settled = in_force(old, new)
    assert make_plan(old, settled).lines() == [
        "topics.telemetry: retention 7d -> 8d",
        "limits.max_connections: 10000 -> 5",
    ]
    assert sorted(change.key for change in make_plan(settled, new).changes) == sorted(make_plan(old, new).waiting)
    assert not [change for change in make_plan(settled, new).changes if not change.needs_restart]


def test_a_plan_against_itself_is_empty(load):
    assert make_plan(load(BASE), load(BASE)).changes == ()
    assert in_force(load(BASE), load(BASE)) == load(BASE)
    assert to_tree(in_force(load(BASE), load(BASE))) == to_tree(load(BASE))


def test_a_mixture_of_two_safe_configurations_is_not_taken_for_one(load, tmp_path):
    (tmp_path / "passwd").write_text("")
    (tmp_path / "passwd").chmod(0o600)
    guarded = load("listeners: {a: {bind: 0.0.0.0}}\nauth: {anonymous: false, password_file: passwd}\n")
    local = load("listeners: {a: {bind: 127.0.0.1}}\nauth: {anonymous: true}\n")
    meant = load("listeners: {a: {bind: 0.0.0.0}}\nauth: {anonymous: true}\ninsecure: true\n")

    def opened(old, new):
        return opened_doors(old, new, in_force(old, new))

    assert opened(guarded, local) == ["a"]
    assert opened(guarded, meant) == []
    assert opened(local, guarded) == []
    assert opened(meant, local) == [], "it was open before"
