"""What the configuration comes to: everything that the server needs, checked and in the units of the code."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from highway.broker.settings import BrokerSettings
from highway.log_lines import LoggingSettings
from highway.storage.settings import StorageSettings

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from highway.config.passwords import Passwords
    from highway.config.secret_files import Secret
    from highway.storage.settings import LogSettings

__all__ = ["AuthSettings", "Listener", "PluginSettings", "Settings", "TlsSettings"]


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """The files of a TLS listener. Without `keyfile`, the key stands in `certfile`.

    With `cafile`, clients are asked for a certificate that one of its authorities signed, and may have none;
    `require_certificate` closes the door to those.
    """

    certfile: Path
    keyfile: Path | None = None
    cafile: Path | None = None
    require_certificate: bool = False
    digest: str = field(default="", compare=False)  # of what the files held when they were read

    @property
    def files(self) -> list[Path]:
        """All that is named."""
        return [path for path in (self.certfile, self.keyfile, self.cafile) if path is not None]


@dataclass(frozen=True, slots=True)
class Listener:
    """An address to listen on; port 0 takes any that is free. `websocket` is the path of MQTT over WebSocket."""

    name: str
    host: str
    port: int
    tls: TlsSettings | None = None
    websocket: str | None = None

    @property
    def address(self) -> tuple[object, ...]:
        """Everything that can't be changed without closing the socket."""
        return (self.host, self.port, self.websocket, self.tls is None)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class PluginSettings:
    """An amqtt plugin: its class by dotted name, and its options; some of their values may be a `Secret`."""

    name: str
    options: Mapping[str, Any]
    where: str  # file:line, for messages


@dataclass(frozen=True, slots=True)
class AuthSettings:
    """Who is let in, read from all the files that say so: nothing of it changes, a reload makes another one."""

    anonymous: bool = True
    passwords: Passwords | None = None
    plugins: tuple[PluginSettings, ...] = ()
    plugin_timeout_s: float = 5.0
    plugin_cache_s: float = 60.0


@dataclass(frozen=True, slots=True)
class Settings:
    """A whole configuration that may take effect.

    `logs` are in the order of the topic entries; `broker.entries` name them. `warnings` are lines for the operator
    about what is allowed and probably not meant.
    """

    data_dir: Path
    listeners: tuple[Listener, ...]
    logs: tuple[LogSettings, ...]
    broker: BrokerSettings = field(default_factory=BrokerSettings)
    storage: StorageSettings = field(default_factory=StorageSettings)
    auth: AuthSettings = field(default_factory=AuthSettings)
    http: tuple[str, int] | None = None  # address and port of the HTTP API beside the unix socket
    http_token: Secret | None = None  # what has to be shown there
    logging: LoggingSettings = field(default_factory=LoggingSettings)
    warnings: tuple[str, ...] = ()
    watch_ms: int = 0  # how often the files are looked at for changes; 0: never
    files: tuple[Path, ...] = field(default=(), compare=False)  # that it was read from
    digest: str = field(default="", compare=False)  # of all files behind it when they were read, if they are watched
