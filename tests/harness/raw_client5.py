"""`RawClient` for MQTT 5: sends exactly the bytes of a test, and sees exactly those of the broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.harness import packets5
from tests.harness.raw_client import CONNACK, PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, SUBACK, UNSUBACK, RawClient

if TYPE_CHECKING:
    from tests.harness.packets5 import Ack, Connack, Message

__all__ = ["RawClient5"]


class RawClient5(RawClient):
    """One connection of MQTT 5; `connack` is what its CONNECT was answered with."""

    connack: Connack

    @classmethod
    def connected(cls, port: int, client_id: str, **settings: Any) -> RawClient5:  # type: ignore[override]
        """A client past its CONNACK 0; `settings` are those of `packets5.connect`."""
        client = cls(port)
        client.login(client_id, **settings)
        return client

    def login(self, client_id: str, **settings: Any) -> bool:
        self.send(packets5.connect(client_id, **settings))
        self.connack = packets5.parse_connack(CONNACK, self.expect(CONNACK))
        assert self.connack.reason_code == 0, self.connack
        self.session_present = self.connack.session_present
        return self.session_present

    def _handle(self, first_byte: int, body: bytes) -> None:
        kind = first_byte & 0xF0
        if kind == PUBLISH:
            message = packets5.parse_publish(first_byte, body)
            self._messages.append(message)  # type: ignore[arg-type]
            if self.auto_ack and message.qos:
                self.send(packets5.ack(PUBACK if message.qos == 1 else PUBREC, message.packet_id))
        elif kind == PUBREL and self.auto_ack:
            self.send(packets5.ack(PUBCOMP, int.from_bytes(body[:2], "big")))

    def messages(self, count: int, *, timeout: float | None = None) -> list[Message]:  # type: ignore[override]
        return super().messages(count, timeout=timeout)  # type: ignore[return-value]

    def message(self, *, timeout: float | None = None) -> Message:  # type: ignore[override]
        return self.messages(1, timeout=timeout)[0]

    def waiting_messages(self) -> list[Message]:  # type: ignore[override]
        return super().waiting_messages()  # type: ignore[return-value]

    def subscribe(self, *filters: tuple[str, int], **properties: Any) -> list[int]:
        """SUBSCRIBE of (topic filter, options byte); returns the codes of the SUBACK."""
        packet_id = self.next_id()
        self.send(packets5.subscribe(packet_id, *filters, **properties))
        found, codes, _ = packets5.parse_suback(SUBACK, self.expect(SUBACK))
        assert found == packet_id
        return codes

    def unsubscribe(self, *filters: str) -> list[int]:  # type: ignore[override]
        packet_id = self.next_id()
        self.send(packets5.unsubscribe(packet_id, *filters))
        found, codes, _ = packets5.parse_suback(UNSUBACK, self.expect(UNSUBACK))
        assert found == packet_id
        return codes

    def publish(  # type: ignore[override]
        self, topic: str, payload: bytes, *, qos: int = 1, retain: bool = False, **properties: Any
    ) -> int:
        """PUBLISH and its whole handshake; returns the reason code of its first acknowledgement."""
        packet_id = self.next_id()
        self.send(packets5.publish(topic, payload, qos=qos, packet_id=packet_id, retain=retain, **properties))
        if not qos:
            return 0
        answer = self.expect_ack(PUBACK if qos == 1 else PUBREC)
        assert answer.packet_id == packet_id
        if qos == 2 and answer.reason_code < 0x80:
            self.send(packets5.ack(0x62, packet_id))
            assert self.expect_ack(PUBCOMP).packet_id == packet_id
        return answer.reason_code

    def expect_ack(self, kind: int) -> Ack:
        return packets5.parse_ack(kind, self.expect(kind))

    def expect_disconnect(self, reason_code: int, *, within: float = 5.0) -> None:
        """The broker says why and closes."""
        seen = self.expect_closed(within=within)
        assert seen, "closed without a DISCONNECT"
        assert packets5.parse_disconnect(*seen[-1])[0] == reason_code

    def leave(self, reason_code: int = 0, **properties: Any) -> None:
        """DISCONNECT, and wait until the broker has closed too."""
        self.send(packets5.disconnect(reason_code, **properties))
        self.expect_closed(within=self.timeout)
        self.close()
