"""Settings -> the configuration file that stands for them, with everything said that was left to defaults."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import yaml

from highway.config.access import shown_options
from highway.config.limits import limits_section
from highway.config.listeners import is_open
from highway.config.units import UNLIMITED, format_duration, format_size

if TYPE_CHECKING:
    from highway.broker.authorisation import AclRule
    from highway.broker.settings import BrokerSettings
    from highway.config.models import AuthSettings, Listener, Settings
    from highway.storage.settings import LogSettings, StorageSettings

__all__ = ["to_tree", "to_yaml"]

# The same text in a fifth of the time, where PyYAML was built with libyaml: a reload writes it while publishers wait.
_DUMPER: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


def to_yaml(settings: Settings) -> str:
    """A configuration file that says the same as `settings`."""
    return yaml.dump(to_tree(settings), Dumper=_DUMPER, sort_keys=False, allow_unicode=True, width=120)


def to_tree(settings: Settings) -> dict[str, Any]:
    """The same as plain values, under the keys of the file."""
    broker = settings.broker
    return {
        "data_dir": str(settings.data_dir.absolute()),
        "listeners": {item.name: _listener(item) for item in settings.listeners},
        **_http(settings),
        "insecure": broker.anonymous and any(is_open(listener) for listener in settings.listeners),
        "auth": _auth(broker, settings.auth),
        "limits": limits_section(broker),
        "logging": {"format": settings.logging.format, "level": settings.logging.level},
        "reload": {"watch": format_duration(settings.watch_ms)},
        "memory_budget": format_size(settings.storage.memory_budget),
        "unmatched": "reject" if broker.unmatched_reject else "store",
        "topics": [
            {"topic": entry.topic_filter.decode(), "log": log.name, **_log(log)}
            for entry, log in zip(broker.entries, settings.logs, strict=True)
        ],
        "storage": _storage(settings.storage),
    }


def _http(settings: Settings) -> dict[str, Any]:
    if settings.http is None:
        return {}
    tree: dict[str, Any] = dict(zip(("bind", "port"), settings.http, strict=True))
    if settings.http_token is not None:
        tree["token"] = {"file": str(settings.http_token.path.absolute())}
    return {"http": tree}


def _listener(listener: Listener) -> dict[str, Any]:
    tree: dict[str, Any] = {"bind": listener.host, "port": listener.port}
    if listener.tls is not None:
        files = {key: getattr(listener.tls, key) for key in ("certfile", "keyfile", "cafile")}
        tree["tls"] = {key: str(path.absolute()) for key, path in files.items() if path is not None}
        tree["tls"]["require_certificate"] = listener.tls.require_certificate
    if listener.websocket is not None:
        tree["websocket"] = listener.websocket
    return tree


def _auth(broker: BrokerSettings, auth: AuthSettings) -> dict[str, Any]:
    tree: dict[str, Any] = {"anonymous": broker.anonymous}
    if auth.passwords is not None:
        tree["password_file"] = str(auth.passwords.path.absolute())
    if auth.plugins:
        tree["plugins"] = {plugin.name: shown_options(plugin.options) for plugin in auth.plugins}
        tree["plugin_timeout"] = format_duration(round(auth.plugin_timeout_s * 1000))
        tree["plugin_cache"] = format_duration(round(auth.plugin_cache_s * 1000))
    if broker.acl is not None:
        tree["acl"] = [_acl_rule(rule) for rule in broker.acl]
    tree["acl_denied"] = "close" if broker.acl_denied_closes else "drop"
    return tree


def _acl_rule(rule: AclRule) -> dict[str, Any]:
    words = [right.name.lower() for right in sorted(rule.rights)]
    tree: dict[str, Any] = {"allow" if rule.allow else "deny": words, "topic": rule.topic_filter.decode()}
    return tree | {key: name for key, name in (("user", rule.user), ("client", rule.client)) if name is not None}


def _log(log: LogSettings) -> dict[str, Any]:
    return {
        "durability": log.durability.name,
        "delay": format_duration(log.delay_ms),
        "retention": _duration(log.retention_ms),
        "retention_bytes": _size(log.retention_bytes),
        "segment_bytes": format_size(log.segment_bytes),
        "flush_interval": format_duration(log.flush_interval_ms),
        "flush_bytes": format_size(log.flush_bytes),
        "sync_interval": format_duration(log.sync_interval_ms),
        "sync_bytes": format_size(log.sync_bytes),
        "compression": log.compression,
        "compression_level": log.compression_level,
        "verify": log.verify,
        "on_corruption": log.on_corruption,
        "cleanup": log.cleanup,
        "per_topic": log.per_topic,
        "max_logs": log.max_logs,
    }


def _storage(storage: StorageSettings) -> dict[str, Any]:
    return {
        "journal_file_bytes": format_size(storage.journal_file_bytes),
        "checkpoint_interval": format_duration(storage.checkpoint_interval_ms),
        "checkpoint_bytes": format_size(storage.checkpoint_bytes),
        "cache_bytes": format_size(storage.cache_bytes),
        "max_backlog_bytes": format_size(storage.max_backlog_bytes),
        "max_bytes": _size(storage.max_bytes),
        "reaper_interval": format_duration(storage.reaper_interval_ms),
        "scrub_rate": f"{format_size(storage.scrub_rate)}/s",
        "scrub_interval": format_duration(storage.scrub_interval_ms),
        "reserve_bytes": format_size(storage.reserve_bytes),
    }


def _duration(milliseconds: int | None) -> str:
    return UNLIMITED if milliseconds is None else format_duration(milliseconds)


def _size(size: int | None) -> str:
    return UNLIMITED if size is None else format_size(size)
