"""The shape of the configuration file: every key, its range, its default and its sentence, as pydantic models.

Unknown keys are errors. A key that the documentation of Highway names and this version can't do yet stands in `LATER`
of its section and is refused by name: a limit that is accepted and not kept is worse than none. Defaults come from the
settings of the layers below, so that each number stands in the code once.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import core_schema

from highway.broker.authorisation import Right
from highway.config.limits import LimitsSection
from highway.config.models import AuthSettings
from highway.config.problems import did_you_mean
from highway.config.sections import Duration, Section, Size, Speed
from highway.errors import MqttError
from highway.mqtt.topics import validate_topic_filter
from highway.storage.settings import LogSettings, StorageSettings

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
    from pydantic.json_schema import JsonSchemaValue

__all__ = [
    "NAME_PATTERN",
    "AclRuleSection",
    "ConfigFile",
    "HttpSection",
    "ListenerSection",
    "LogKeys",
    "LoggingSection",
    "ReloadSection",
    "Section",
    "StorageSection",
    "TlsSection",
    "TopicSection",
    "json_schema",
    "topics_json_schema",
]

# Names of logs become folders, names of listeners become parts of environment variables.
NAME_PATTERN = r"^[a-z0-9][a-z0-9_-]{0,63}$"

# What can stand in the first line of an HTTP request, less the query.
WEBSOCKET_PATTERN = r"^/[!$-;=@-Z_a-z~]*$"

_AUTH = AuthSettings()
_LOG = LogSettings("")
_STORAGE = StorageSettings()


class TlsSection(Section):
    """Certificates of a listener, as files in PEM form."""

    certfile: str = Field(min_length=1, description="Certificate of this server, and behind it those of its issuers.")
    keyfile: str | None = Field(
        None, min_length=1, description="Private key of the certificate; without it, the key stands in certfile."
    )
    cafile: str | None = Field(
        None, min_length=1, description="Authorities whose certificates clients may show; without it, they need none."
    )
    require_certificate: bool = Field(
        default=False, description="Refuse clients without a certificate of an authority in cafile."
    )


def _check_path(text: str) -> str:
    if not re.fullmatch(WEBSOCKET_PATTERN, text):
        raise ValueError(f"{text!r} is no path: it begins with '/', such as /mqtt, and has no '?', '#' or spaces")
    return text


class ListenerSection(Section):
    """An address that clients connect to."""

    bind: str = Field("127.0.0.1", min_length=1, description="Address or host name to listen on.")
    port: int = Field(
        1883, ge=0, le=65_535, description="TCP port; 0 takes any that is free, and the start-up line says which."
    )
    tls: TlsSection | None = Field(None, description="Serve over TLS 1.2 and 1.3 only.")
    websocket: Annotated[str, AfterValidator(_check_path)] | None = Field(
        None,
        description="Serve MQTT over WebSocket, under this path, instead of over plain TCP.",
        json_schema_extra={"pattern": WEBSOCKET_PATTERN},
    )


class SecretFileSection(Section):
    """A secret, by the file that it stands in."""

    file: str = Field(
        min_length=1, description="Path, from the folder of this file on, or a name in $CREDENTIALS_DIRECTORY."
    )


class HttpSection(Section):
    """Where the HTTP API is served, beside the socket in the data directory."""

    bind: str = Field("127.0.0.1", min_length=1, description="Address or host name to serve on, of this machine.")
    port: int = Field(
        8080, ge=0, le=65_535, description="TCP port; 0 takes any that is free, and the start-up line says which."
    )
    token: SecretFileSection | None = Field(
        None, description="Whoever comes over TCP has to show it: Authorization: Bearer. Needed beyond this machine."
    )


class _RightList:
    """Annotation of the rights that a rule is about: one word or a list of them, kept as a tuple."""

    _words = tuple(right.name.lower() for right in Right)

    def validate(self, value: object) -> tuple[Right, ...]:
        """The rights of `value`; ValueError for what is none."""
        words: list[Any] = value if isinstance(value, list) else [value]
        if not words:
            raise ValueError(f"nothing is listed here; one of {', '.join(self._words)} is wanted at least")
        for word in words:
            if word not in self._words:
                raise ValueError(f"{word!r} is no right{did_you_mean(str(word), self._words)}")
        return tuple(Right[word.upper()] for word in words)

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(self.validate)

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        word = {"enum": list(self._words)}
        return {"anyOf": [word, {"type": "array", "items": word, "minItems": 1}]}


def _check_acl_filter(text: str) -> str:
    """`text`, if it is a topic filter in which `%c` and `%u` are levels of their own."""
    keyword = text.partition("/")[0]
    if keyword in ("$share", "$replay", "$log", "$fetch", "$range"):
        raise ValueError(f"{text!r}: rights are about topics; write what follows {keyword}/... and choose the right")
    for level in text.split("/"):
        if ("%c" in level or "%u" in level) and level not in ("%c", "%u"):
            raise ValueError(f"{text!r}: %c and %u stand for a whole level; {level!r} has more in it")
    try:
        validate_topic_filter(text.encode())
    except (MqttError, UnicodeEncodeError) as error:
        raise ValueError(f"{text!r} is no valid topic filter: {error}") from None
    return text


class AclRuleSection(Section):
    """A rule about what clients may do: exactly one of `allow` and `deny`."""

    allow: Annotated[tuple[Right, ...], _RightList()] = Field(
        (), description="What the rule allows: publish, subscribe, replay, fetch, or a list of them."
    )
    deny: Annotated[tuple[Right, ...], _RightList()] = Field((), description="What the rule denies, in the same words.")
    topic: Annotated[str, AfterValidator(_check_acl_filter)] = Field(
        min_length=1, description="Topic filter; the levels %c and %u stand for the client id and the user name."
    )
    user: str = Field("", min_length=1, description="The rule is about this user only.")
    client: str = Field("", min_length=1, description="The rule is about the client with this id only.")

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if bool(self.allow) == bool(self.deny):
            raise ValueError("exactly one of `allow` and `deny` is wanted")
        return self


class AuthSection(Section):
    """Who may connect, and what they may do."""

    anonymous: bool = Field(default=False, description="Whether clients may connect without a user name.")
    password_file: str | None = Field(
        None, min_length=1, description="Users and hashes of their passwords, in mosquitto's format."
    )
    plugins: dict[str, dict[str, Any]] = Field(
        default_factory=dict,
        description="amqtt plugins by the dotted names of their classes, with their options, asked in this order.",
    )
    plugin_timeout: Annotated[int, Duration("10ms", "1m")] = Field(
        round(_AUTH.plugin_timeout_s * 1000), description="How long a plugin may take to decide; later means no."
    )
    plugin_cache: Annotated[int, Duration("1s", "1d")] = Field(
        round(_AUTH.plugin_cache_s * 1000), description="How long what a plugin decided is taken for granted."
    )
    acl: list[AclRuleSection] = Field(
        default_factory=list,
        description="Rules in order: the first that matches decides, and none means no. Without this key all is allowed.",
    )
    acl_denied: Literal["drop", "close"] = Field(
        "drop",
        description="A publish for which a client before MQTT 5 has no right: acknowledged and dropped, or its "
        "connection closed; MQTT 5 is told.",
    )


class LoggingSection(Section):
    """What the broker says about itself on standard error."""

    format: Literal["text", "json"] = Field(
        "text", description="One line each: a sentence with fields behind it, or a JSON object."
    )
    level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Lines below this level are left out."
    )


class ReloadSection(Section):
    """When a changed configuration is put in force, beside `highway reload` and SIGHUP."""

    watch: Annotated[int, Duration("0s", "1h")] = Field(
        0, description="How often the files are looked at for changes, which are then reloaded; 0s: never."
    )


class LogKeys(Section):
    """What can be set for each log, and under `defaults` for all of them."""

    durability: Literal["FAST", "BALANCED", "SAFE"] = Field(
        "BALANCED",
        description="When a message is acknowledged: in memory, written to the journal, or synced and read back.",
    )
    delay: Annotated[int, Duration("0s", "365d")] = Field(
        _LOG.delay_ms, description="Subscribers see a message this long after it was stored."
    )
    retention: Annotated[int | None, Duration("1s", "36500d", unlimited=True)] = Field(
        _LOG.retention_ms, description="Messages older than this are deleted, whole segments at a time."
    )
    retention_bytes: Annotated[int | None, Size("64KiB", "1024TiB", unlimited=True)] = Field(
        _LOG.retention_bytes, description="The oldest messages of a log larger than this on disk are deleted."
    )
    segment_bytes: Annotated[int, Size("64KiB", "4GiB")] = Field(
        _LOG.segment_bytes, description="Size at which a segment file is sealed; retention deletes sealed segments."
    )
    flush_interval: Annotated[int, Duration("1ms", "1m")] = Field(
        _LOG.flush_interval_ms, description="FAST: how long an acknowledged message may exist in memory only."
    )
    flush_bytes: Annotated[int, Size("4KiB", "256MiB")] = Field(
        _LOG.flush_bytes, description="A buffer this large becomes one compressed frame."
    )
    sync_interval: Annotated[int, Duration("1ms", "1h")] = Field(
        _LOG.sync_interval_ms, description="FAST and BALANCED: how long a message may wait for fdatasync."
    )
    sync_bytes: Annotated[int, Size("4KiB", "1GiB")] = Field(
        _LOG.sync_bytes, description="FAST and BALANCED: this many unsynced bytes are synced at once."
    )
    compression: Literal["zstd", "none"] = Field(_LOG.compression, description="Codec of the frames in segments.")
    compression_level: int = Field(_LOG.compression_level, ge=1, le=22, description="zstd level.")
    verify: Literal["cache", "direct", "off"] = Field(
        _LOG.verify, description="SAFE: how a sync is read back; direct bypasses the page cache."
    )
    on_corruption: Literal["gap", "refuse"] = Field(
        _LOG.on_corruption, description="A damaged range is reported as a gap, or keeps the log from opening."
    )
    cleanup: Literal["delete", "compact"] = Field(
        _LOG.cleanup,
        description="delete: by age and size; compact: the newest message of each topic is kept, and retention is "
        "unlimited unless the entry sets it.",
    )
    per_topic: bool = Field(
        default=_LOG.per_topic, description="Each topic that matches has a log of its own, named <log>/<topic>."
    )
    max_logs: int = Field(
        _LOG.max_logs,
        ge=1,
        le=100_000,
        description="Logs of a per_topic entry; what comes to other topics then goes to the next entry that matches.",
    )


class TopicSection(LogKeys):
    """A topic filter and the log that takes what matches it."""

    topic: str = Field(min_length=1, description="MQTT topic filter; the first entry that matches a topic decides.")
    log: str = Field(
        default_factory=str,
        pattern=NAME_PATTERN,
        description="Name of the log, under which its data is kept; without it, made from the topic filter.",
    )


class StorageSection(Section):
    """Tuning of the data directory as a whole."""

    LATER = frozenset({"engine", "servers", "replicas"})

    journal_file_bytes: Annotated[int, Size("1MiB", "1GiB")] = Field(
        _STORAGE.journal_file_bytes, description="Size of one journal file."
    )
    checkpoint_interval: Annotated[int, Duration("100ms", "1h")] = Field(
        _STORAGE.checkpoint_interval_ms, description="Time between two checkpoints; a restart replays what came since."
    )
    checkpoint_bytes: Annotated[int, Size("1MiB", "1GiB")] = Field(
        _STORAGE.checkpoint_bytes, description="Journal written since the last checkpoint that calls for another."
    )
    cache_bytes: Annotated[int, Size("1MiB", "1TiB")] = Field(
        _STORAGE.cache_bytes, description="Decoded frames kept in memory for subscribers that catch up."
    )
    max_backlog_bytes: Annotated[int, Size("64KiB", "1GiB")] = Field(
        _STORAGE.max_backlog_bytes, description="Bytes waiting for the journal above which publishers are paused."
    )
    max_bytes: Annotated[int | None, Size("1MiB", "1024TiB", unlimited=True)] = Field(
        _STORAGE.max_bytes, description="All logs together, on disk; the oldest segments go first."
    )
    reaper_interval: Annotated[int, Duration("100ms", "1d")] = Field(
        _STORAGE.reaper_interval_ms, description="How often retention is looked at."
    )
    scrub_rate: Annotated[int, Speed("0B/s", "10GiB/s")] = Field(
        _STORAGE.scrub_rate, description="Rate at which sealed segments are read again to find damage; 0B/s: never."
    )
    scrub_interval: Annotated[int, Duration("1s", "365d")] = Field(
        _STORAGE.scrub_interval_ms, description="Time from the beginning of a round of that to the next."
    )
    reserve_bytes: Annotated[int, Size("0B", "64GiB")] = Field(
        _STORAGE.reserve_bytes, description="Disk space kept back, and given up when the disk is full."
    )


def _list_or_file(schema: dict[str, Any]) -> None:
    """Let the JSON schema of `topics` admit the path of a file as well; the loader has replaced it by then."""
    items = {key: schema.pop(key) for key in ("items", "type")}
    schema["anyOf"] = [items, {"type": "string"}]


class ConfigFile(Section):
    """Configuration of Highway."""

    LATER = frozenset({"bridges"})

    data_dir: str = Field(
        "highway-data", min_length=1, description="Where everything is kept; relative to the folder of this file."
    )
    memory_budget: Annotated[int, Size("1MiB", "1TiB")] = Field(
        _STORAGE.memory_budget, description="Memory for the newest messages of all logs together."
    )
    listeners: dict[Annotated[str, Field(pattern=NAME_PATTERN)], ListenerSection] = Field(
        default_factory=lambda: {"local": ListenerSection()},
        min_length=1,
        description="Addresses to listen on, by name.",
    )
    insecure: bool = Field(
        default=False, description="Allow listeners beyond this machine where anybody may connect without a password."
    )
    http: HttpSection | None = Field(None, description="Serve the HTTP API over TCP; without this section, it is not.")
    logging: LoggingSection = Field(default_factory=LoggingSection)
    reload: ReloadSection = Field(default_factory=ReloadSection)
    limits: LimitsSection = Field(default_factory=LimitsSection)
    auth: AuthSection = Field(default_factory=lambda: AuthSection(anonymous=True))
    defaults: LogKeys = Field(default_factory=LogKeys, description="Values for the topic entries that don't set them.")
    unmatched: Literal["store", "reject"] = Field(
        "store", description="Messages that no topic entry matches: stored in the log `other`, or refused."
    )
    topics: list[TopicSection] = Field(
        default_factory=list,
        description="Topic entries, or the path of a file that holds the list; the first that matches decides.",
        json_schema_extra=_list_or_file,
    )
    storage: StorageSection = Field(default_factory=StorageSection)


def json_schema() -> dict[str, Any]:
    """The JSON schema of the file, for editors; defaults stand in it as people write them, with their units."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **ConfigFile.model_json_schema()}
    sections: list[type[Section]] = [
        TlsSection,
        ListenerSection,
        HttpSection,
        SecretFileSection,
        LimitsSection,
        AuthSection,
        AclRuleSection,
        LoggingSection,
        ReloadSection,
        LogKeys,
        TopicSection,
    ]
    sections += [StorageSection, ConfigFile]
    for section in sections:
        properties = (schema if section is ConfigFile else schema["$defs"][section.__name__])["properties"]
        written = section.model_construct().model_dump()
        for key, value in properties.items():
            value.pop("title", None)
            if "default" in value:
                value["default"] = written[key]
            if value.get("default") in ("", ()):
                del value["default"]  # stands for a key that is not there, and would be none of its values
    return schema


def topics_json_schema() -> dict[str, Any]:
    """The JSON schema of a file that holds the list of topic entries, beside the other."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "description": "Topic entries of Highway; the first that matches a topic decides.",
        "type": "array",
        "items": {"$ref": "highway.schema.json#/$defs/TopicSection"},
    }
