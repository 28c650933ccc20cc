"""`auth:` from the file to what the broker goes by: rules, and the files of passwords and secrets behind it.

What is read here is a whole and changes no more. A file that can't be read, or has a fault in it, is a problem of the
configuration like any other, so that a reload with one leaves everything as it was.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from highway.broker.authorisation import USERNAME, AclRule
from highway.config.models import AuthSettings, PluginSettings
from highway.config.passwords import PasswordFileError, load_passwords
from highway.config.problems import KeyPath, Mark, Problem
from highway.config.secret_files import Secret, SecretError, find_secret_file, read_secret
from highway.config.yaml_loader import load_yaml
from highway.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from highway.config.passwords import Passwords
    from highway.config.schema import AuthSection
    from highway.config.yaml_loader import Document

__all__ = [
    "acl_rules",
    "acl_warnings",
    "password_file_of",
    "read_access",
    "read_http_token",
    "reveal_options",
    "shown_options",
]

_AUTH: KeyPath = ("auth",)
_FLOAT = re.compile(r"-?[0-9]+\.[0-9]+")
# Names of options that hold secrets, and passwords inside of addresses: what must not be shown, wherever it stands.
_SECRET_NAME = re.compile(r"secret|passw|token|private|(^|_)key$", re.IGNORECASE)
_IN_ADDRESS = re.compile(r"(://[^/@:]*:)[^/@]*@")
HIDDEN = "(hidden)"


def read_access(document: Document, tree: dict[str, Any], folder: Path, section: AuthSection) -> AuthSettings:
    """Who is let in; problems with the files are added to those of `document`.

    `tree` is as read, so that a fault elsewhere doesn't hide those; `section` is the default where there was one.
    """
    given = tree.get("auth")
    given = given if isinstance(given, dict) else {}
    return AuthSettings(
        anonymous=section.anonymous,
        passwords=_read_passwords(document, given.get("password_file"), folder),
        plugins=_plugins(document, given.get("plugins"), folder),
        plugin_timeout_s=section.plugin_timeout / 1000,
        plugin_cache_s=section.plugin_cache / 1000,
    )


def password_file_of(config_file: Path) -> Path | None:
    """The password file that a configuration names, whatever is right or wrong with it and with all else there."""
    try:
        document = load_yaml(config_file.read_text(encoding="utf-8"), str(config_file))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError([f"{config_file}: can't be read: {error}"]) from error
    tree = document.value if isinstance(document.value, dict) else {}
    section = tree.get("auth")
    name = section.get("password_file") if isinstance(section, dict) else None
    return find_secret_file(name, config_file.parent) if isinstance(name, str) and name else None


def _read_passwords(document: Document, name: object, folder: Path) -> Passwords | None:
    if not isinstance(name, str) or not name:
        return None
    key = (*_AUTH, "password_file")
    path = find_secret_file(name, folder)
    try:
        return load_passwords(path)
    except PasswordFileError as error:
        for line, text in error.problems:
            if line:
                document.add(key, text, Mark(str(path), line, 1))
            else:
                document.add(key, f"{path}: {text}")
    return None


def read_http_token(document: Document, tree: dict[str, Any], folder: Path) -> Secret | None:
    """The token of the HTTP API, None without one; what is wrong with its file becomes a problem of the document."""
    http = tree.get("http")
    token = http.get("token") if isinstance(http, dict) else None
    if not isinstance(token, dict) or not isinstance(token.get("file"), str) or not token["file"]:
        return None
    try:
        secret = read_secret(find_secret_file(token["file"], folder))
    except SecretError as error:
        document.add(("http", "token", "file"), str(error))
        return None
    if not re.fullmatch(r"[\x21-\x7e]{16,}", secret.reveal()):
        document.add(("http", "token", "file"), f"{secret.path}: a token has 16 or more letters, digits and signs")
    return secret


def _plugins(document: Document, section: object, folder: Path) -> tuple[PluginSettings, ...]:
    found = []
    for name, options in section.items() if isinstance(section, dict) else ():
        if isinstance(options, dict):
            key = (*_AUTH, "plugins", name)
            mark = document.key_mark_of(key)
            where = "" if mark is None else f"{mark.file}:{mark.line}"
            found.append(PluginSettings(name, _options(document, key, options, folder), where))
    return tuple(found)


def _options(document: Document, key: KeyPath, value: Any, folder: Path) -> Any:
    """Options as the plugin wants them: `{file: ...}` is a secret, and 1.5 a number, which it is nowhere else here."""
    if isinstance(value, dict):
        if set(value) == {"file"} and isinstance(value["file"], str):
            try:
                return read_secret(find_secret_file(value["file"], folder))
            except SecretError as error:
                document.add((*key, "file"), str(error))
                return ""
        return {name: _options(document, (*key, name), item, folder) for name, item in value.items()}
    if isinstance(value, list):
        return [_options(document, (*key, number), item, folder) for number, item in enumerate(value)]
    if isinstance(value, str) and _FLOAT.fullmatch(document.raw.get(key, "")):
        return float(value)
    return value


def reveal_options(options: Any) -> Any:
    """Options with their secrets in them, for the plugin alone."""
    if isinstance(options, Secret):
        return options.reveal()
    if isinstance(options, dict):
        return {name: reveal_options(value) for name, value in options.items()}
    return [reveal_options(value) for value in options] if isinstance(options, list) else options


def shown_options(options: Any, name: str = "") -> Any:
    """Options as they may be shown: secrets by the path of their file, or not at all where they stand in the open."""
    if isinstance(options, Secret):
        return {"file": str(options.path.absolute())}
    if isinstance(options, dict):
        return {key: shown_options(value, str(key)) for key, value in options.items()}
    if isinstance(options, list):
        return [shown_options(value, name) for value in options]
    if isinstance(options, str):
        return (
            HIDDEN
            if _SECRET_NAME.search(name) and not name.endswith("_file")
            else _IN_ADDRESS.sub(rf"\1{HIDDEN}@", options)
        )
    return options


def acl_rules(document: Document, section: AuthSection) -> tuple[AclRule, ...] | None:
    """The rules; None where none are given, which is not the same as an empty list."""
    if "acl" not in section.model_fields_set:
        return None
    rules = []
    for number, rule in enumerate(section.acl):
        mark = document.mark_of((*_AUTH, "acl", number))
        rules.append(
            AclRule(
                bool(rule.allow),
                frozenset(rule.allow or rule.deny),
                rule.topic.encode(),
                rule.user or None,
                rule.client or None,
                "" if mark is None else f"{mark.file}:{mark.line}",
            )
        )
    return tuple(rules)


def acl_warnings(document: Document, section: AuthSection) -> list[Problem]:
    """What is allowed to stand under `auth`, and says less than it seems to."""
    if "acl" not in section.model_fields_set:
        return []
    key: KeyPath = (*_AUTH, "acl")
    if not section.acl:
        text = "has no rules, so that nobody may do anything; without this key everybody may do everything"
        return [Problem(document.mark_of(key) or Mark("configuration"), key, text)]
    if section.password_file or section.plugins or not section.anonymous:
        return []
    return [
        Problem(
            document.mark_of((*key, number)) or Mark("configuration"),
            (*key, number),
            "trusts the user name that a client gives: nothing checks it without a password_file or plugins",
        )
        for number, rule in enumerate(section.acl)
        if rule.user or USERNAME in rule.topic.encode().split(b"/")
    ]
