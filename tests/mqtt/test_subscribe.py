from __future__ import annotations

import pytest

from highway.mqtt import (
    Properties,
    SubackPacket,
    SubscribePacket,
    Subscription,
    UnsubackPacket,
    UnsubscribePacket,
    decode_packet,
)


@pytest.mark.parametrize(
    ("subscription", "options"),
    [
        (Subscription(b"a", 2), 0x02),
        (Subscription(b"a", 1, no_local=True), 0x05),
        (Subscription(b"a", 0, retain_as_published=True), 0x08),
        (Subscription(b"a", 2, no_local=True, retain_as_published=True, retain_handling=2), 0x2E),
    ],
)
def test_options(subscription, options):
    assert subscription.options == options
    packet = SubscribePacket(1, [subscription])
    assert packet.encode(5)[-1] == options
    assert decode_packet(packet.encode(5), 5) == packet
    assert packet.encode(4)[-1] == subscription.qos


def test_suback_before_5_0_has_one_failure():
    packet = SubackPacket(7, [0, 2, 0x8F, 0x97])
    assert packet.encode(4).hex() == "900600070002 8080".replace(" ", "")
    assert packet.encode(5).hex() == "9007000700 00028f97".replace(" ", "")


def test_a_reason_string_is_for_5_0():
    packet = SubackPacket(7, [0x8F], Properties({0x1F: "no offset 9"}))
    assert packet.encode(4).hex() == "9003000780"
    assert decode_packet(packet.encode(5), 5).properties.reason_string == "no offset 9"


def test_unsuback():
    packet = UnsubackPacket(7, [0, 0x11])
    assert packet.encode(4).hex() == "b0020007"
    assert decode_packet(packet.encode(5), 5) == packet


def test_the_largest_subscribe_of_a_small_client():
    filters = [b"sensor/%d/+" % number for number in range(500)]
    packet = SubscribePacket(65_535, [Subscription(one, 1) for one in filters])
    assert decode_packet(packet.encode(4), 4) == packet
    again = UnsubscribePacket(65_535, filters)
    assert decode_packet(again.encode(4), 4) == again
