"""The client side of a WebSocket on a plain or TLS socket: the frames that a test asks for, however wrong they are."""

from __future__ import annotations

import base64
import hashlib
import os
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket

__all__ = ["BINARY", "CLOSE", "CONTINUATION", "PING", "PONG", "TEXT", "WebSocket", "frame", "request"]

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
_MAGIC = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


def frame(opcode: int, payload: bytes = b"", *, fin: bool = True, masked: bool = True) -> bytes:
    """A frame of RFC 6455."""
    length = len(payload)
    head = bytes([fin << 7 | opcode])
    bit = masked << 7
    if length < 126:
        head += bytes([bit | length])
    elif length < 65_536:
        head += bytes([bit | 126]) + struct.pack(">H", length)
    else:
        head += bytes([bit | 127]) + struct.pack(">Q", length)
    if not masked:
        return head + payload
    key = os.urandom(4)
    mask = (key * (length // 4 + 1))[:length]
    return head + key + (int.from_bytes(payload) ^ int.from_bytes(mask)).to_bytes(length)


def request(path: str = "/mqtt", *, protocol: str | None = "mqtt", key: bytes = b"0123456789abcdef") -> bytes:
    """The opening handshake."""
    lines = [
        f"GET {path} HTTP/1.1",
        "Host: localhost",
        "Upgrade: websocket",
        "Connection: keep-alive, Upgrade",
        f"Sec-WebSocket-Key: {base64.b64encode(key).decode()}",
        "Sec-WebSocket-Version: 13",
        *([f"Sec-WebSocket-Protocol: {protocol}"] if protocol is not None else []),
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


class WebSocket:
    """Stands for the socket of a RawClient: one binary frame for each send, and the payloads of those that come."""

    def __init__(self, below: socket.socket, path: str = "/mqtt") -> None:
        self.below = below
        self._received = b""
        self.pongs: list[bytes] = []
        self.frames: list[int] = []  # payload lengths of the binary frames
        self.close_code: int | None = None
        key = os.urandom(16)
        below.sendall(request(path, key=key))
        status, headers = self.read_response()
        assert status == 101, status
        accept = hashlib.sha1(base64.b64encode(key) + _MAGIC).digest()
        assert headers["sec-websocket-accept"] == base64.b64encode(accept).decode()
        assert headers["sec-websocket-protocol"] == "mqtt"

    def read_response(self) -> tuple[int, dict[str, str]]:
        """Status and headers of an HTTP response."""
        while b"\r\n\r\n" not in self._received:
            data = self.below.recv(4096)
            assert data, self._received
            self._received += data
        head, self._received = self._received.split(b"\r\n\r\n", 1)
        first, *lines = head.decode().split("\r\n")
        pairs = (line.split(": ", 1) for line in lines)
        return int(first.split()[1]), {name.lower(): value for name, value in pairs}

    def sendall(self, data: bytes) -> None:
        self.below.sendall(frame(BINARY, data))

    def send_raw(self, data: bytes) -> None:
        """Bytes as they are."""
        self.below.sendall(data)

    def recv(self, _size: int) -> bytes:
        """The payload of the next binary frame; b"" at the end, which a close frame is, too."""
        while True:
            found = self.read_frame()
            if found is None:
                return b""
            opcode, payload = found
            if opcode == BINARY:
                self.frames.append(len(payload))
                return payload
            if opcode == CLOSE:
                self.close_code = int.from_bytes(payload[:2])
                return b""
            assert opcode == PONG, opcode
            self.pongs.append(payload)

    def read_frame(self) -> tuple[int, bytes] | None:
        """Opcode and payload of the next frame, which the server may neither mask nor split; None at the end."""
        head = self._take(2)
        if head is None:
            return None
        assert head[0] & 0xF0 == 0x80
        length = head[1]
        if length >= 126:
            size = 2 if length == 126 else 8
            length = int.from_bytes(self._take(size) or b"")
        payload = self._take(length)
        return None if payload is None else (head[0] & 0x0F, payload)

    def _take(self, count: int) -> bytes | None:
        while len(self._received) < count:
            data = self.below.recv(1 << 18)
            if not data:
                return None
            self._received += data
        taken, self._received = self._received[:count], self._received[count:]
        return taken

    def settimeout(self, seconds: float | None) -> None:
        self.below.settimeout(seconds)

    def setsockopt(self, *arguments: int) -> None:
        self.below.setsockopt(*arguments)

    def close(self) -> None:
        self.below.close()
