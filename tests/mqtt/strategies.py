"""Hypothesis strategies for everything that travels, valid by construction."""

from __future__ import annotations

from hypothesis import strategies as st

from highway.mqtt import (
    AuthPacket,
    ConnackPacket,
    ConnectPacket,
    DisconnectPacket,
    PingreqPacket,
    PingrespPacket,
    Properties,
    PubackPacket,
    PubcompPacket,
    PubrecPacket,
    PubrelPacket,
    SubackPacket,
    SubscribePacket,
    Subscription,
    UnsubackPacket,
    UnsubscribePacket,
    Will,
    encode_properties,
)
from highway.mqtt.properties import PROPERTIES, WILL, PropertyId
from highway.mqtt.reason_codes import REASON_CODES, V5, PacketType

# Characters that no name may hold are outside of these categories (Cc, Cs, Cn has the non-characters).
characters = st.characters(exclude_categories=("Cc", "Cs", "Cn"))
names = st.text(characters, max_size=12)
level = st.text(st.characters(exclude_categories=("Cc", "Cs", "Cn"), exclude_characters="/+#"), max_size=6)
topic_names = (
    st.lists(level, min_size=1, max_size=6)
    .map("/".join)
    .filter(lambda text: text and not text.startswith("$share"))
    .map(str.encode)
)
payloads = st.binary(max_size=300)
packet_ids = st.integers(1, 65_535)
versions = st.sampled_from([3, 4, 5])


@st.composite
def topic_filters(draw):
    levels = draw(st.lists(st.one_of(level, st.just("+")), min_size=1, max_size=6))
    if draw(st.booleans()):
        levels[-1] = "#"
    text = "/".join(levels)
    return (text if text and not text.startswith("$share") else "+").encode()


def _value(identifier: PropertyId):
    spec = PROPERTIES[identifier]
    return {
        "BYTE": st.integers(spec.low, min(spec.high, 255)),
        "TWO_BYTE": st.integers(spec.low, 65_535),
        "FOUR_BYTE": st.integers(spec.low, 0xFFFFFFFF),
        "VARINT": st.integers(spec.low, 268_435_455),
        "STRING": names,
        "TOPIC": topic_names,
        "BINARY": st.binary(max_size=20),
        "PAIR": st.tuples(names, names),
    }[spec.kind.name]


@st.composite
def properties(draw, packet, exclude=()):
    """Properties that `packet` may carry."""
    allowed = [key for key, spec in PROPERTIES.items() if packet in spec.packets and key not in exclude]
    chosen = draw(st.lists(st.sampled_from(allowed), unique=True, max_size=5)) if allowed else []
    result = Properties()
    for identifier in chosen:
        many = packet in PROPERTIES[identifier].repeatable_in
        if identifier in (PropertyId.USER_PROPERTY, PropertyId.SUBSCRIPTION_IDENTIFIER):
            result[identifier] = draw(st.lists(_value(identifier), min_size=1, max_size=3 if many else 1))
        else:
            result[identifier] = draw(_value(identifier))
    return result


def properties_for(version, packet, exclude=()):
    return properties(packet, exclude) if version == V5 else st.just(Properties())


def message_blocks(version):
    """Raw property blocks of a message, as a client may publish them."""
    if version != V5:
        return st.just(b"")
    exclude = (PropertyId.TOPIC_ALIAS, PropertyId.SUBSCRIPTION_IDENTIFIER)
    return properties(PacketType.PUBLISH, exclude).map(lambda found: encode_properties(found, PacketType.PUBLISH))


@st.composite
def wills(draw, version):
    block = draw(properties_for(version, WILL, (PropertyId.WILL_DELAY_INTERVAL,)))
    return Will(
        draw(topic_names),
        draw(payloads),
        draw(st.integers(0, 2)),
        draw(st.booleans()),
        encode_properties(block, WILL),
        draw(st.integers(0, 0xFFFFFFFF)) if version == V5 else 0,
    )


@st.composite
def connects(draw, version, *, with_method=True):
    exclude = () if with_method else (PropertyId.AUTHENTICATION_METHOD, PropertyId.AUTHENTICATION_DATA)
    found = draw(properties_for(version, PacketType.CONNECT, exclude))
    if found.authentication_method is None:
        found.authentication_data = None
    clean_start = draw(st.booleans())
    client_id = draw(names)
    if not client_id and (version == 3 or (version == 4 and not clean_start)):
        client_id = "x"
    username = draw(st.none() | names)
    password = draw(st.none() | st.binary(max_size=20)) if version == V5 or username is not None else None
    return ConnectPacket(
        version,
        client_id,
        clean_start,
        draw(st.integers(0, 65_535)),
        username,
        password,
        draw(st.none() | wills(version)),
        found,
        draw(st.booleans()) if version != V5 else False,
    )


def subscriptions(version):
    if version != V5:
        return st.builds(Subscription, topic_filters(), st.integers(0, 2))
    return st.builds(Subscription, topic_filters(), st.integers(0, 2), st.booleans(), st.booleans(), st.integers(0, 2))


def subscribes(version):
    return st.builds(
        SubscribePacket,
        packet_ids,
        st.lists(subscriptions(version), min_size=1, max_size=5),
        properties_for(version, PacketType.SUBSCRIBE),
    )


def unsubscribes(version):
    return st.builds(
        UnsubscribePacket,
        packet_ids,
        st.lists(topic_filters(), min_size=1, max_size=5),
        properties_for(version, PacketType.UNSUBSCRIBE),
    )


@st.composite
def acknowledgements(draw, version, kind):
    if version != V5:
        return kind(draw(packet_ids))
    code = draw(st.sampled_from(sorted(REASON_CODES[kind.packet_type])))
    return kind(draw(packet_ids), code, draw(properties(kind.packet_type)))


@st.composite
def disconnects(draw, version):
    if version != V5:
        return DisconnectPacket()
    code = draw(st.sampled_from(sorted(REASON_CODES[PacketType.DISCONNECT])))
    return DisconnectPacket(code, draw(properties(PacketType.DISCONNECT, (PropertyId.SESSION_EXPIRY_INTERVAL,))))


@st.composite
def auths(draw):
    found = draw(properties(PacketType.AUTH))
    found.authentication_method = draw(names)
    return AuthPacket(draw(st.sampled_from([0x00, 0x18, 0x19])), found)


@st.composite
def connacks(draw, version):
    if version != V5:
        code = draw(st.sampled_from([0x00, 0x84, 0x85, 0x88, 0x86, 0x87]))
        return ConnackPacket(version == 4 and code == 0 and draw(st.booleans()), code)
    code = draw(st.sampled_from(sorted(REASON_CODES[PacketType.CONNACK])))
    return ConnackPacket(code == 0 and draw(st.booleans()), code, draw(properties(PacketType.CONNACK)))


@st.composite
def subacks(draw, version):
    known = sorted(REASON_CODES[PacketType.SUBACK]) if version == V5 else [0, 1, 2, 0x80]
    codes = draw(st.lists(st.sampled_from(known), min_size=1, max_size=5))
    return SubackPacket(draw(packet_ids), codes, draw(properties_for(version, PacketType.SUBACK)))


@st.composite
def unsubacks(draw, version):
    if version != V5:
        return UnsubackPacket(draw(packet_ids))
    codes = draw(st.lists(st.sampled_from(sorted(REASON_CODES[PacketType.UNSUBACK])), min_size=1, max_size=5))
    return UnsubackPacket(draw(packet_ids), codes, draw(properties(PacketType.UNSUBACK)))


def packets(version):
    """Any packet but CONNECT and PUBLISH, in either direction."""
    kinds = [PubackPacket, PubrecPacket, PubrelPacket, PubcompPacket]
    return st.one_of(
        *(acknowledgements(version, kind) for kind in kinds),
        subscribes(version),
        unsubscribes(version),
        subacks(version),
        unsubacks(version),
        connacks(version),
        disconnects(version),
        st.just(PingreqPacket()),
        st.just(PingrespPacket()),
        *([auths()] if version == V5 else []),
    )
