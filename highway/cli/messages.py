"""A received message as bytes and as JSON values."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import aiomqtt

__all__ = ["message_fields", "payload_of"]


def payload_of(message: aiomqtt.Message) -> bytes:
    """The payload; aiomqtt types it wider than what it receives, which is bytes."""
    payload: Any = message.payload
    return bytes(payload)


def message_fields(message: aiomqtt.Message) -> dict[str, Any]:
    """`topic`, `payload`, `qos` and `retain`; a payload that is no text comes as `payload_base64` instead."""
    payload = payload_of(message)
    fields: dict[str, Any] = {"topic": str(message.topic)}
    try:
        fields["payload"] = payload.decode()
    except UnicodeDecodeError:
        fields["payload_base64"] = base64.b64encode(payload).decode()
    return {**fields, "qos": message.qos, "retain": message.retain}
