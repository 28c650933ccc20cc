"""The `limits` of the configuration file: what one client, or all together, may take."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from highway.broker.settings import BrokerSettings
from highway.broker.token_bucket import Rate  # noqa: TC001  pydantic reads the annotations
from highway.config.sections import ByteRate, Duration, MessageRate, Section, Size
from highway.mqtt import MAX_LEVELS

__all__ = ["LimitsSection", "limits_of", "limits_section"]

_BROKER = BrokerSettings()


class LimitsSection(Section):
    """What one client, or all together, may take."""

    max_connections: int = Field(
        _BROKER.max_connections, ge=1, le=1_000_000, description="Clients connected at once; one more is refused."
    )
    max_connections_per_address: int = Field(
        _BROKER.max_connections_per_address, ge=1, le=1_000_000, description="The same, of one IP address."
    )
    max_half_open_per_address: int = Field(
        _BROKER.max_half_open_per_address,
        ge=1,
        le=1_000_000,
        description="Connections of one IP address that are not logged in; those beyond have two seconds to do it.",
    )
    connect_rate_per_address: Annotated[Rate | None, MessageRate("1/h", "1000000/s", unlimited=True)] = Field(
        _BROKER.connect_rate_per_address, description="CONNECTs of one IP address; those beyond wait."
    )
    reconnect_rate: Annotated[Rate | None, MessageRate("1/h", "1000000/s", unlimited=True)] = Field(
        _BROKER.reconnect_rate, description="CONNECTs with one client id; those beyond wait."
    )
    connect_timeout: Annotated[int, Duration("100ms", "10m")] = Field(
        round(_BROKER.connect_timeout_s * 1000), description="Time from accept to a complete CONNECT."
    )
    max_connect_packet: Annotated[int, Size("128B", "256MiB")] = Field(
        _BROKER.max_connect_packet_bytes, description="Largest CONNECT; memory that a stranger may take."
    )
    max_packet: Annotated[int, Size("128B", "256MiB")] = Field(
        _BROKER.max_packet_bytes, description="Largest control packet; a client that announces more is disconnected."
    )
    max_topic_bytes: Annotated[int, Size("1B", "65535B")] = Field(
        _BROKER.max_topic_bytes, description="Longest topic name or topic filter, in UTF-8."
    )
    max_topic_levels: int = Field(
        _BROKER.max_topic_levels, ge=1, le=MAX_LEVELS, description="Levels of a topic name or topic filter."
    )
    publish_rate: Annotated[Rate | None, MessageRate("1/h", "100000000/s", unlimited=True)] = Field(
        _BROKER.publish_rate, description="Messages of one client; while it is beyond, nothing is read from it."
    )
    publish_bytes: Annotated[Rate | None, ByteRate("1B/h", "1TiB/s", unlimited=True)] = Field(
        _BROKER.publish_bytes, description="The same in bytes, of all that it sends."
    )
    new_topics: Annotated[Rate | None, MessageRate("1/h", "1000000/s", unlimited=True)] = Field(
        _BROKER.new_topics,
        description="Topic names of one client that nobody used lately; beyond, it is not read from.",
    )
    catchup_bytes: Annotated[Rate | None, ByteRate("1B/h", "1TiB/s", unlimited=True)] = Field(
        _BROKER.catchup_bytes, description="Stored messages to one client that catches up or replays."
    )
    max_inflight: int = Field(
        _BROKER.max_inflight, ge=1, le=65_535, description="Unacknowledged QoS 1 and 2 messages to one client."
    )
    receive_maximum: int = Field(
        _BROKER.receive_maximum,
        ge=1,
        le=65_535,
        description="QoS 1 and 2 messages that an MQTT 5 client may have under way to the broker.",
    )
    max_keep_alive: Annotated[int | None, Duration("1s", "65535s", unlimited=True)] = Field(
        None,
        description="Longest keep alive of an MQTT 5 client; one that asks for more, or for none, is given this.",
    )
    max_subscriptions: int = Field(
        _BROKER.max_subscriptions, ge=1, le=1_000_000, description="Subscriptions of one session."
    )
    max_retained: int = Field(_BROKER.max_retained, ge=0, le=100_000_000, description="Topics with a retained message.")
    max_retained_bytes: Annotated[int, Size("0B", "64GiB")] = Field(
        _BROKER.max_retained_bytes, description="Topic names and payloads of all retained messages."
    )
    max_sessions: int = Field(
        _BROKER.max_sessions, ge=1, le=100_000_000, description="Sessions; a new one that is to be kept is refused."
    )
    session_expiry: Annotated[int | None, Duration("1s", "36500d", unlimited=True)] = Field(
        _BROKER.session_expiry_ms,
        description="How long a persistent session of a disconnected MQTT 3.1.1 client is kept.",
    )
    write_buffer: Annotated[int, Size("4KiB", "1GiB")] = Field(
        _BROKER.write_buffer_bytes,
        description="Unsent bytes above which a slow subscriber is served from the log instead of from memory.",
    )


# Key -> field of BrokerSettings, where the field has the unit of its number in its name.
_FIELDS = {key: key for key in LimitsSection.model_fields} | {
    "max_connect_packet": "max_connect_packet_bytes",
    "max_packet": "max_packet_bytes",
    "session_expiry": "session_expiry_ms",
    "write_buffer": "write_buffer_bytes",
}


def limits_of(section: LimitsSection) -> dict[str, Any]:
    """The fields of BrokerSettings that a section comes to."""
    values = {field: getattr(section, key) for key, field in _FIELDS.items()}
    values["connect_timeout_s"] = values.pop("connect_timeout") / 1000
    # MQTT counts it in seconds; what is less than one is cut off.
    values["max_keep_alive_s"] = (values.pop("max_keep_alive") or 0) // 1000
    return values


def limits_section(broker: BrokerSettings) -> dict[str, Any]:
    """The section that `broker` comes of, as people write it."""
    values: dict[str, Any] = {
        "connect_timeout": round(broker.connect_timeout_s * 1000),
        "max_keep_alive": broker.max_keep_alive_s * 1000 or None,
    }
    values = {key: values[key] if key in values else getattr(broker, field) for key, field in _FIELDS.items()}
    return LimitsSection.model_construct(None, **values).model_dump()
