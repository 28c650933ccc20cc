"""Rules about who may do what, through the broker: SUBSCRIBE, PUBLISH, wills, replay, fetch, and what is delivered."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest
from hypothesis import given, strategies as st

from highway.broker.authentication import Identity
from highway.broker.authorisation import AclRule, Right, rights_of
from highway.broker.reconfiguring import reconfigure
from highway.mqtt.topics import matches
from tests.broker.rig import Peer, Peer5, Rig
from tests.harness import packets, packets5

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from highway.broker.authentication import Login

NOT_AUTHORIZED = 0x87
EVERYTHING = frozenset(Right)

Make: TypeAlias = "Callable[..., Rig]"


def rule(what: str, topic_filter: str, *words: str, user: str | None = None, client: str | None = None) -> AclRule:
    """`what` is allow or deny; all rights where no words are given."""
    rights = frozenset(Right[word.upper()] for word in words) or EVERYTHING
    return AclRule(what == "allow", rights, topic_filter.encode(), user, client)


ALL_OF_OPS = rule("allow", "#", client="ops")


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def make(*rules: AclRule, **settings: Any) -> Rig:
        return Rig(tmp_path, acl=(ALL_OF_OPS, *rules), **settings)

    return make


def ops(rig: Rig, data: bytes = b"") -> Peer:
    """The client that may do everything."""
    return rig.connect("ops").send(data)


def publish(rig: Rig, topic: str, payload: bytes = b"x", *, retain: bool = False, qos: int = 1) -> None:
    ops(rig, packets.publish(topic, payload, qos=qos, packet_id=1, retain=retain))


def codes(peer: Peer, *filters: str) -> list[int]:
    """What a 3.1.1 client's SUBSCRIBE is answered with; what comes behind it is left to take."""
    peer.send(packets.subscribe(1, *((name, 1) for name in filters)))
    first, body = packets.PacketSplitter().feed(bytes(peer.link.written))[0]
    assert first == 0x90
    del peer.link.written[: len(packets.packet(first, body))]
    return list(body[2:])


def topics(peer: Peer) -> list[str]:
    return [message.topic for message in peer.messages()]


# Field report 65.


def test_report_65_every_filter_is_looked_at_and_wider_ones_are_refused(make: Make) -> None:
    rig = make(rule("allow", "weather/+/me", "subscribe"))
    filters = ["weather/x/me", "#", "weather/#", "+/+/me", "weather/+/me", "weather/x/you", "$SYS/#"]
    old = rig.connect("c")
    old.take()
    assert codes(old, *filters) == [1, 0x80, 0x80, 0x80, 1, 0x80, 0x80]
    new = rig.connect5("d")
    assert new.subscribe(*((name, 1) for name in filters)) == [1, 0x87, 0x87, 0x87, 1, 0x87, 0x87]
    publish(rig, "weather/x/me")
    publish(rig, "weather/x/you")
    assert topics(old) == ["weather/x/me"]
    assert [message.topic for message in new.messages()] == ["weather/x/me"]


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_report_65_a_denied_publish_is_nowhere(make: Make, qos: int) -> None:
    rig = make(rule("allow", "mine/#", "publish"))
    watcher = ops(rig, packets.subscribe(1, ("#", 2)))
    watcher.take()
    old = rig.connect("c")
    old.take()
    old.send(packets.publish("theirs", b"x", qos=qos, packet_id=7, retain=True))
    assert old.take() == ([] if not qos else [(0x40 if qos == 1 else 0x50, b"\0\7")])
    if qos == 2:
        assert old.send(packets.packet(0x62, b"\0\7")).take() == [(0x70, b"\0\7")]
    new = rig.connect5("d")
    new.send(packets5.publish("theirs", b"x", qos=qos, packet_id=7, retain=True))
    assert [ack.reason_code for ack in new.acks()] == ([NOT_AUTHORIZED] if qos else [])
    assert not old.link.closed
    assert not new.link.closed
    assert topics(watcher) == []
    assert rig.storage.logs["other"].log_end_offset == 0
    assert rig.broker.retained.get(b"theirs") is None
    assert rig.broker.counters.acl_denied == 2
    new.send(packets5.publish("mine/1", b"x"))
    assert topics(watcher) == ["mine/1"]


def test_a_denied_publish_closes_where_that_is_wanted(make: Make) -> None:
    rig = make(rule("allow", "mine", "publish"), acl_denied_closes=True)
    watcher = ops(rig, packets.subscribe(1, ("#", 0)))
    watcher.take()
    old = Peer(rig, "c", clean=True, connect=packets.connect("c", will=("mine", b"off", 0, False)))
    old.send(packets.publish("theirs", b"x", qos=1, packet_id=1) + packets.publish("mine", b"too late"))
    assert old.link.closed
    assert [first >> 4 for first, _ in old.take()] == [2]
    assert [message.payload for message in watcher.messages()] == [b"off"]
    new = rig.connect5("d")
    new.send(packets5.publish("theirs", b"x", qos=1, packet_id=1))
    assert [ack.reason_code for ack in new.acks()] == [NOT_AUTHORIZED]
    assert not new.link.closed


# Field report 63.


@pytest.mark.parametrize("name", ["#", "+", "a/../b", ".*", "a/b", "", "%u", "%c", "$SYS", "a#", "x", "ä"])
@pytest.mark.parametrize("version", [4, 5])
def test_report_63_names_are_taken_literally_as_one_level(make: Make, name: str, version: int) -> None:
    rig = make(
        rule("allow", "dev/%c/#", "subscribe"),
        rule("allow", "dev/%u/+", "publish"),
        rule("allow", "%c/#", "subscribe"),
        rule("allow", "public", "subscribe", "publish"),
    )
    if version == 5:
        peer: Peer = Peer5(rig, packets5.connect(name, username=name))
    else:
        peer = Peer(rig, name, clean=True, connect=packets.connect(name, username=name))
    peer.take()
    client_id = peer.client.client_id
    filters = ["dev/#", "dev/+/#", "dev/other/#", "dev/+", "#", "+/#", "$SYS/#", "$SYS/broker/uptime", "public"]
    peer.send(
        packets5.subscribe(1, *((f, 0) for f in filters))
        if version == 5
        else packets.subscribe(1, *((f, 0) for f in filters))
    )
    first, body = peer.take()[0]
    assert first == 0x90
    refused = NOT_AUTHORIZED if version == 5 else 0x80
    assert list(body[-len(filters) :]) == [refused] * 8 + [0]
    rights = rig.broker.sessions[client_id].rights
    assert rights is not None
    one_level = bool(client_id) and not set(client_id) & set("+#/")
    assert rights.may_select(Right.SUBSCRIBE, f"dev/{client_id}/#".encode()) is one_level
    assert rights.may_select(Right.SUBSCRIBE, f"dev/{client_id}/a/b".encode()) is one_level
    assert rights.may_select(Right.SUBSCRIBE, f"{client_id}/a".encode()) is (one_level and client_id != "$SYS")
    for topic in (b"dev/a", b"dev/a/b", b"dev//a", b"dev/other/a", b"dev/%u/a" if name != "%u" else b"dev/b/a"):
        assert not rights.may(Right.PUBLISH, topic), topic
    if name and one_level:
        assert rights.may(Right.PUBLISH, f"dev/{name}/a".encode())
        assert not rights.may(Right.PUBLISH, f"dev/{name}/a/b".encode())
    assert rights.may(Right.PUBLISH, b"public")


def test_report_63_a_rule_that_denies_counts_for_every_name_where_the_own_is_no_level() -> None:
    rules = [rule("deny", "dev/%c/secret"), rule("allow", "dev/#")]
    for client_id, denied in (
        ("a", [b"dev/a/secret"]),
        ("a/b", [b"dev/a/secret", b"dev/b/secret"]),
        ("+", [b"dev/a/secret"]),
    ):
        rights = rights_of(rules, None, client_id)
        assert rights is not None
        assert [name for name in denied if rights.may(Right.PUBLISH, name)] == []
        assert rights.may(Right.PUBLISH, b"dev/a/open")


# The rest.


def test_the_first_rule_about_the_right_and_the_client_decides() -> None:
    rules = [
        rule("deny", "a/b", "publish", user="u"),
        rule("allow", "a/#", "publish", "fetch"),
        rule("deny", "a/#", "fetch"),
        rule("allow", "only", "publish", user="u", client="c"),
    ]
    u, other = rights_of(rules, "u", "c"), rights_of(rules, None, "c")
    assert u is not None
    assert other is not None
    assert not u.may(Right.PUBLISH, b"a/b")
    assert u.may(Right.PUBLISH, b"a/c")
    assert other.may(Right.PUBLISH, b"a/b")
    assert u.may(Right.FETCH, b"a/b")
    assert not u.may(Right.SUBSCRIBE, b"a/b")
    assert u.may(Right.PUBLISH, b"only")
    assert not other.may(Right.PUBLISH, b"only")
    assert rights_of(None, "u", "c") is None


def test_without_a_rule_nothing_is_allowed(tmp_path: Path) -> None:
    rig = Rig(tmp_path, acl=())
    peer = rig.connect5("c")
    assert peer.connack.reason_code == 0
    assert (
        peer.subscribe(("a", 0), ("$share/g/a", 0), ("$replay/earliest/a", 0), ("$range/a", 0)) == [NOT_AUTHORIZED] * 4
    )
    peer.send(packets5.publish("a", b"x", qos=1, packet_id=1))
    assert [ack.reason_code for ack in peer.acks()] == [NOT_AUTHORIZED]


@pytest.mark.parametrize("how", ["live", "caught up", "retained", "a group"])
def test_what_is_denied_of_a_filter_is_left_out_of_what_it_brings(make: Make, how: str) -> None:
    rig = make(rule("deny", "t/+/secret", "subscribe"), rule("allow", "t/#", "subscribe"))
    names = ["t/1/secret", "t/1/open", "t/2/secret", "t/2/open"]
    if how == "retained":
        for name in names:
            publish(rig, name, retain=True)
    peer = rig.connect("c", clean=False)
    peer.take()
    assert codes(peer, "$share/g/t/#" if how == "a group" else "t/#", "t/1/secret", "t/+/secret") == [1, 0x80, 0x80]
    if how == "caught up":
        peer.drop()
    if how != "retained":
        for name in names:
            publish(rig, name)
    if how == "caught up":
        peer = rig.connect("c", clean=False)
    assert sorted(topics(peer)) == ["t/1/open", "t/2/open"]


def test_a_member_of_a_group_gets_what_it_may_have(make: Make) -> None:
    rig = make(
        rule("deny", "t/a", "subscribe", client="b"),
        rule("deny", "t/b", "subscribe", client="a"),
        rule("allow", "t/#", "subscribe"),
    )
    members = [rig.connect(name).send(packets.subscribe(1, ("$share/g/t/#", 0))) for name in "ab"]
    for _ in range(3):
        for topic in ("t/a", "t/b", "t/a"):
            publish(rig, topic, qos=0)
    assert [set(topics(member)) for member in members] == [{"t/a"}, {"t/b"}]


def test_what_nobody_there_may_have_holds_up_no_group(make: Make) -> None:
    rig = make(rule("deny", "t/a", "subscribe"), rule("allow", "t/#", "subscribe"))
    member = rig.connect("m").send(packets.subscribe(1, ("$share/g/t/#", 0)))
    for topic in ("t/a", "t/b"):
        publish(rig, topic, qos=0)
    assert topics(member) == ["t/b"]


def test_rights_are_those_of_the_connection(make: Make) -> None:
    rig = make(rule("allow", "t/#", "subscribe", user="u"), rule("allow", "t/open", "subscribe"), max_inflight=2)

    def connect(user: str) -> Peer:
        return Peer(rig, "c", clean=False, connect=packets.connect("c", clean=False, username=user))

    peer = connect("u").send(packets.subscribe(1, ("t/#", 1)))
    for topic in ("t/shut", "t/open", "t/shut", "t/open"):
        publish(rig, topic)
    assert topics(peer) == ["t/shut", "t/open"]
    peer.drop()
    other = connect("v")
    got = []
    while batch := other.messages():
        for message in batch:
            got.append((message.topic, message.dup))
            other.send(packets.ack(0x40, message.packet_id))
    assert got == [("t/open", True), ("t/open", False)]


@pytest.mark.parametrize("name", ["$replay/earliest/t", "$log/earliest/t", "$share/g/$replay/earliest/t"])
def test_replay_is_a_right_of_its_own(make: Make, name: str) -> None:
    rig = make(rule("allow", "t", "subscribe", client="s"), rule("allow", "t", "replay", client="r"))
    publish(rig, "t")
    assert rig.connect5("s").subscribe((name, 0), ("t", 0)) == [NOT_AUTHORIZED, 0]
    reader = rig.connect5("r")
    assert reader.subscribe((name, 0)) == [0]
    publish(rig, "t")
    assert len(reader.messages()) == 2
    assert reader.subscribe(("t", 0)) == [NOT_AUTHORIZED]


def test_replay_by_a_property_is_a_replay(make: Make) -> None:
    rig = make(rule("allow", "t", "subscribe", client="s"), rule("allow", "t", "replay", client="r"))
    publish(rig, "t")
    asked = {"user_property": [("replay-from", "earliest")]}
    assert rig.connect5("s").subscribe(("t", 0), **asked) == [NOT_AUTHORIZED]
    reader = rig.connect5("r")
    assert reader.subscribe(("t", 0), **asked) == [0]
    assert len(reader.messages()) == 1


def test_a_replay_leaves_out_what_is_denied(make: Make) -> None:
    rig = make(rule("deny", "t/secret", "replay"), rule("allow", "t/#", "replay"))
    for topic in ("t/secret", "t/open"):
        publish(rig, topic)
    peer = rig.connect("c")
    peer.take()
    assert codes(peer, "$replay/earliest/t/#", "$replay/earliest/t/secret") == [1, 0x80]
    assert topics(peer) == ["t/open"]


def test_fetch_is_a_right_of_its_own(make: Make) -> None:
    rig = make(
        rule("allow", "t", "fetch", client="f"),
        rule("allow", "#", "subscribe", "replay"),
        rule("allow", "answers", "publish", client="f"),
    )
    publish(rig, "t")
    without = rig.connect5("s")
    assert without.subscribe(("$fetch/0/t", 0), ("$range/t", 0)) == [NOT_AUTHORIZED] * 2
    peer = rig.connect5("f")
    assert peer.subscribe(("$fetch/0/t", 0), ("$range/t", 0), ("answers", 0)) == [0, 0, 0]
    assert len(peer.messages()) == 2
    for who in (without, peer):
        who.send(packets5.publish("$fetch/0/t", b"", qos=1, packet_id=1, response_topic="answers"))
    assert [ack.reason_code for ack in without.acks()] == [NOT_AUTHORIZED]
    assert [message.payload for message in peer.messages()] == [b"x"]
    peer.send(packets5.publish("$fetch/0/t", b"", qos=1, packet_id=1, response_topic="not/mine"))
    assert [ack.reason_code for ack in peer.acks()] == [NOT_AUTHORIZED]


@pytest.mark.parametrize("topic", ["$SYS/broker/uptime", "$gap/other", "$CONTROL/x", "/".join(["x"] * 202)])
@pytest.mark.parametrize("rules", [False, True])
def test_the_answer_to_a_fetch_is_no_message_that_nobody_may_publish(
    tmp_path: Path, topic: str, *, rules: bool
) -> None:
    everything = (rule("allow", "#"), rule("allow", "$SYS/#"), rule("allow", "$gap/#"), rule("allow", "$CONTROL/#"))
    rig = Rig(tmp_path, acl=everything if rules else None)
    reader = rig.connect("reader")
    reader.take()
    codes(reader, "$SYS/#", "#", "$gap/#", "$CONTROL/#")
    reader.take()
    evil = rig.connect5("evil")
    evil.send(packets5.publish("t", b"forged", qos=1, packet_id=1))
    evil.send(packets5.publish("$fetch/0/t", b"", qos=1, packet_id=2, response_topic=topic))
    assert topics(reader) == ["t"]


class _SlowJudge:
    """Says yes to everything, when it is told to; a `Companion` too."""

    def __init__(self) -> None:
        self.answers: list[Callable[[bool], None]] = []

    @property
    def judge(self) -> _SlowJudge:
        return self

    def decide(self, _: object, done: Callable[[bool], None]) -> None:
        self.answers.append(done)

    def connected(self) -> None: ...

    disconnected = connected


class _ByName:
    """Takes each client for the user that it says it is; `evil` has a judge."""

    lets_anybody_in = False

    def __init__(self) -> None:
        self.judge = _SlowJudge()

    def authenticate(self, login: Login, _: object) -> Identity:
        return Identity(login.username, login.username, self.judge if login.username == "evil" else None)

    def still_knows(self, _: Identity) -> bool:
        return True


def test_who_waits_for_a_verdict_on_its_will_takes_no_session_that_is_anothers_by_then(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    by_name = rig.broker.authenticator = _ByName()
    evil = rig.connect5("id", username="evil", will=("t", b"", 0, False))
    assert evil.connack is None
    owner = Peer(rig, "", clean=True, connect=packets.connect("id", clean=False, username="owner"))
    for answer in by_name.judge.answers:
        answer(True)
    rig.settle()
    assert not owner.link.closed
    assert rig.broker.sessions["id"].owner == "owner"
    assert packets5.parse_connack(*evil.take()[0]).reason_code == 0x85
    assert evil.link.closed


def test_a_will_is_looked_at_again_where_rules_came_while_its_verdict_was_waited_for(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    by_name = rig.broker.authenticator = _ByName()
    evil = rig.connect5("id", username="evil", will=("t", b"", 0, False))
    reconfigure(rig.broker, replace(rig.broker.settings, acl=(rule("deny", "t"), rule("allow", "#"))))
    by_name.judge.answers[0](True)
    rig.settle()
    assert packets5.parse_connack(*evil.take()[0]).reason_code == NOT_AUTHORIZED
    assert rig.broker.sessions == {}


def test_a_will_without_a_right_keeps_its_client_out(make: Make) -> None:
    rig = make(rule("allow", "mine/%c", "publish"))
    assert rig.connect5("c", will=("theirs", b"", 0, False)).connack.reason_code == NOT_AUTHORIZED
    peer = Peer(rig, "c", clean=True, connect=packets.connect("c", will=("mine/d", b"", 0, False)))
    assert peer.take() == [(0x20, b"\0\5")]
    assert peer.link.closed
    assert rig.broker.sessions == {}
    assert rig.connect5("c", will=("mine/c", b"", 0, False)).connack.reason_code == 0


@pytest.mark.parametrize("topic", ["$SYS/broker/uptime", "$share/g/t", "$replay/earliest/t"])
def test_nobody_has_a_will_on_the_broker_s_own_topics(tmp_path: Path, topic: str) -> None:
    rig = Rig(tmp_path)
    assert rig.connect5("c", will=(topic, b"", 0, False)).connack.reason_code == NOT_AUTHORIZED
    control = rig.connect5("c", will=("$CONTROL/x/v1", b"", 0, False))
    assert control.connack is None
    assert control.link.closed
    assert rig.connect5("c", will=("$SYS/broker/connection/x/state", b"0", 0, True)).connack.reason_code == 0


def test_the_system_s_topics_need_a_rule_of_their_own(make: Make) -> None:
    rig = make(rule("allow", "$SYS/broker/#", "subscribe", client="probe"), rule("allow", "#", "subscribe"))
    assert rig.connect5("c").subscribe(("$SYS/broker/uptime", 0), ("#", 0)) == [NOT_AUTHORIZED, 0]
    probe = rig.connect5("probe")
    assert probe.subscribe(("$SYS/broker/uptime", 0)) == [0]
    assert len(probe.messages()) == 1


def test_a_verdict_is_worked_out_once_for_each_topic(make: Make) -> None:
    rig = make(*(rule("allow", f"x/{number}", "publish") for number in range(1000)), rule("allow", "t/#", "publish"))
    peer = rig.connect("c")
    peer.send(packets.publish("t/1", b"x"))
    rights = rig.broker.sessions["c"].rights
    assert rights is not None
    rights._rules[Right.PUBLISH].clear()
    peer.send(packets.publish("t/1", b"x") * 3)
    assert rig.storage.logs["other"].log_end_offset == 4


@given(
    st.lists(st.sampled_from(["a", "b", "+", "%c"]), min_size=1, max_size=3).map("/".join), st.sampled_from(["", "/#"])
)
def test_what_a_filter_may_select_is_within_the_right(pattern: str, tail: str) -> None:
    allowed = pattern + tail
    rights = rights_of([rule("allow", allowed)], None, "b")
    assert rights is not None
    names = [f"{x}{y}{z}" for x in "ab" for y in ("", "/a", "/b") for z in ("", "/a", "/b")]
    for narrow in ("a", "a/b", "+", "+/b", "a/+", "a/#", "#", "+/+", "a/+/b", "+/#"):
        if rights.may_select(Right.SUBSCRIBE, narrow.encode()):
            for name in names:
                if matches(narrow.encode(), name.encode()):
                    assert rights.may(Right.SUBSCRIBE, name.encode()), (allowed, narrow, name)
