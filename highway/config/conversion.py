"""From the validated file to the settings of the layers below."""

from __future__ import annotations

import os
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from highway.broker.settings import BrokerSettings, TopicEntry
from highway.config.access import acl_rules, acl_warnings
from highway.config.digests import digest_of
from highway.config.limits import limits_of
from highway.config.listeners import tls_settings
from highway.config.models import Listener, Settings
from highway.config.problems import Mark, Problem, sorted_lines
from highway.config.topic_entries import OTHER_FILTER, OTHER_LOG, log_name
from highway.config.units import format_size
from highway.log_lines import LoggingSettings
from highway.storage.settings import MIB, Durability, LogSettings, StorageSettings

if TYPE_CHECKING:
    from collections.abc import Iterable

    from highway.config.models import AuthSettings
    from highway.config.schema import ConfigFile, ListenerSection, LogKeys, Section
    from highway.config.secret_files import Secret
    from highway.config.yaml_loader import Document

__all__ = ["to_settings"]

_OTHER_RETENTION_MS = 24 * 60 * 60 * 1000
_OTHER_RETENTION_BYTES = 256 * MIB


def to_settings(
    model: ConfigFile,
    document: Document,
    folder: Path,
    warnings: Iterable[Problem],
    auth: AuthSettings,
    http_token: Secret | None,
) -> Settings:
    """The settings that `model` stands for; relative paths start at `folder`, `auth` and token were read from files."""
    defaults = LogSettings("", **_log_values(model.defaults))
    logs: list[LogSettings] = []
    entries: list[TopicEntry] = []
    for topic in model.topics:
        values = _log_values(topic)
        log = replace(defaults, name=topic.log or log_name(topic.topic), **values)
        if log.cleanup == "compact":
            # The only message of a topic is not to go because others may: what `defaults` say is meant for those.
            log = replace(log, retention_ms=values.get("retention_ms"), retention_bytes=values.get("retention_bytes"))
        logs.append(log)
        entries.append(TopicEntry(topic.topic.encode(), log.name, log.delay_ms, log.per_topic, log.max_logs))
    found = [*warnings, *_retention_warnings(document, logs), *acl_warnings(document, model.auth)]
    reject = model.unmatched == "reject"
    if not reject and all(topic.topic != OTHER_FILTER for topic in model.topics):
        # What no entry matches is kept as well, so that every message has an offset; but not for long.
        logs.append(
            replace(
                defaults,
                name=OTHER_LOG,
                durability=Durability.BALANCED,
                retention_ms=_OTHER_RETENTION_MS,
                retention_bytes=_OTHER_RETENTION_BYTES,
                delay_ms=0,
                cleanup="delete",
                per_topic=False,
            )
        )
        entries.append(TopicEntry(OTHER_FILTER.encode(), OTHER_LOG))
    return Settings(
        data_dir=Path(os.path.normpath(folder / model.data_dir)),
        listeners=tuple(_listener(name, item, folder) for name, item in model.listeners.items()),
        logs=tuple(logs),
        broker=_broker_settings(model, tuple(entries), document, reject=reject),
        auth=auth,
        http=None if model.http is None else (model.http.bind, model.http.port),
        http_token=http_token,
        storage=StorageSettings(memory_budget=model.memory_budget, **_values(model.storage, StorageSettings)),
        logging=LoggingSettings(model.logging.format, model.logging.level),
        watch_ms=model.reload.watch,
        warnings=tuple(sorted_lines(found)),
    )


def _listener(name: str, section: ListenerSection, folder: Path) -> Listener:
    tls = None if section.tls is None else tls_settings(section.tls.model_dump(), folder)
    if tls is not None:
        tls = replace(tls, digest=digest_of(tls.files))
    return Listener(name, section.bind, section.port, tls, section.websocket)


def _broker_settings(
    model: ConfigFile, entries: tuple[TopicEntry, ...], document: Document, *, reject: bool
) -> BrokerSettings:
    return BrokerSettings(
        entries=entries,
        unmatched_reject=reject,
        anonymous=model.auth.anonymous,
        acl=acl_rules(document, model.auth),
        acl_denied_closes=model.auth.acl_denied == "close",
        **limits_of(model.limits),
    )


def _log_values(keys: LogKeys) -> dict[str, Any]:
    """The fields of LogSettings that `keys` gives, and no others, so that defaults shine through."""
    values = _values(keys, LogSettings)
    if "durability" in values:
        values["durability"] = Durability[values["durability"]]
    return values


def _values(section: Section, target: type[LogSettings | StorageSettings]) -> dict[str, Any]:
    """What `section` sets, under the names of `target`, which have the unit of a time at their end."""
    names = {name.removesuffix("_ms"): name for name in (item.name for item in fields(target))}
    return {names[key]: getattr(section, key) for key in section.model_fields_set if key in names}


def _retention_warnings(document: Document, logs: list[LogSettings]) -> list[Problem]:
    """One warning for each log that its bound can't hold: retention deletes sealed segments only."""
    return [
        Problem(
            document.mark_of(("topics", number)) or Mark("configuration"),
            ("topics", number),
            f"retention_bytes ({format_size(log.retention_bytes)}) is below segment_bytes "
            f"({format_size(log.segment_bytes)}), and only whole segments are deleted: lower segment_bytes as well",
        )
        for number, log in enumerate(logs)
        if log.retention_bytes is not None and log.retention_bytes < log.segment_bytes
    ]
