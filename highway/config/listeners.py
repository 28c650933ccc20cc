"""Checks over the listeners: two on one address, certificates that can't be served, doors that stand open."""

from __future__ import annotations

import ipaddress
import time
from typing import TYPE_CHECKING, Any

from highway.config.certificates import certificate_end, tls_faults
from highway.config.models import TlsSettings
from highway.config.problems import Problem
from highway.config.secret_files import secret_file_fault
from highway.errors import CertificateError

if TYPE_CHECKING:
    from pathlib import Path

    from highway.config.models import Listener
    from highway.config.problems import KeyPath
    from highway.config.yaml_loader import Document

__all__ = ["check_listeners", "is_loopback", "is_open", "parse_address", "tls_settings"]

# Time enough to have a certificate renewed by hand, and less than what automatic renewal leaves (Let's Encrypt: 30).
EXPIRY_WARNING_DAYS = 14


def check_listeners(document: Document, tree: dict[str, Any], folder: Path) -> list[Problem]:
    """Add to the problems of `document` what is wrong with the listeners and with who may use them; returns warnings.

    `tree` is as read and may be wrong in other ways, which are reported elsewhere. Relative paths start at `folder`.
    """
    anonymous = _check_auth(document, tree)
    listeners = tree.get("listeners")
    warnings: list[Problem] = []
    seen: dict[tuple[str, int], KeyPath] = {}
    for name, listener in listeners.items() if isinstance(listeners, dict) else ():
        if not isinstance(listener, dict):
            continue
        path: KeyPath = ("listeners", name)
        tls = listener.get("tls")
        if isinstance(tls, dict):
            warnings += _check_tls(document, (*path, "tls"), tls, folder)
        host, port = listener.get("bind", "127.0.0.1"), listener.get("port", 1883)
        if not isinstance(host, str) or not isinstance(port, int):
            continue
        _check_address(document, path, host, port, seen)
        guarded = isinstance(tls, dict) and tls.get("require_certificate") is True
        if anonymous and not guarded and not is_loopback(host) and tree.get("insecure") is not True:
            where: KeyPath = (*path, "bind") if "bind" in listener else path
            if any(problem.path == where for problem in document.problems):
                continue
            document.add(
                where,
                f"{host} is open to the network, and anybody may connect without a password; name a password file "
                "(`auth: {password_file: passwd}`, `highway users add`), listen on 127.0.0.1, or say `insecure: true` at "
                "the top of the file if that is meant",
            )
    _check_http(document, tree, seen)
    return warnings


def _check_http(document: Document, tree: dict[str, Any], seen: dict[tuple[str, int], KeyPath]) -> None:
    """Problems of the address of the HTTP API; the listeners' are in `seen`."""
    http = tree.get("http")
    if not isinstance(http, dict):
        return
    host, port = http.get("bind", "127.0.0.1"), http.get("port", 8080)
    if not isinstance(host, str) or not isinstance(port, int):
        return
    if not is_loopback(host) and not http.get("token"):
        document.add(
            ("http", "bind"),
            f"{host} is open to the network, and the HTTP API asks nobody who they are: name the file of a bearer "
            "token with `token: {file: ...}` beside it, or serve on 127.0.0.1",
        )
    _check_address(document, ("http",), host, port, seen)


def _check_address(
    document: Document, path: KeyPath, host: str, port: int, seen: dict[tuple[str, int], KeyPath]
) -> None:
    """A problem, if a listener in `seen` has the address already, or one of the two has all addresses of the port."""
    canonical = _canonical(host)
    for (other, other_port), other_path in seen.items():
        if (
            port
            and other_port == port
            and (other == canonical or _covers(other, canonical) or _covers(canonical, other))
        ):
            first = document.key_mark_of(other_path)
            document.add(
                path, f"{host} port {port} is already taken by the listener at {first}", document.key_mark_of(path)
            )
            return
    seen[canonical, port] = path


def _canonical(host: str) -> str:
    """One spelling for all spellings of an address; a name is taken as it is."""
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return host.lower()


def _covers(wildcard: str, host: str) -> bool:
    """Whether `wildcard` stands for every address of the family of `host`. `::` is IPv6 only, here as in the server."""
    if wildcard == "0.0.0.0":
        return ":" not in host
    return wildcard == "::" and ":" in host


def _check_tls(document: Document, path: KeyPath, section: dict[str, Any], folder: Path) -> list[Problem]:
    """Problems of the files that `section` names; the warnings are returned."""
    tls = tls_settings(section, folder)
    if tls is None:
        return []  # the keys themselves are wrong, and that is reported
    faults = tls_faults(tls)
    for fault in faults:
        document.add((*path, fault.key), fault.detail)
    if faults:
        return []
    return [*_exposed_key(document, path, tls), *_validity(document, path, tls)]


def _exposed_key(document: Document, path: KeyPath, tls: TlsSettings) -> list[Problem]:
    """A warning where others may read the private key. It is not refused: tools that make keys leave them so."""
    key, file = ("keyfile", tls.keyfile) if tls.keyfile is not None else ("certfile", tls.certfile)
    try:
        fault = secret_file_fault(file)
    except OSError:
        return []
    mark = document.mark_of((*path, key))
    assert mark is not None
    return [Problem(mark, (*path, key), f"{file} holds a private key: {fault}")] if fault else []


def _validity(document: Document, path: KeyPath, tls: TlsSettings) -> list[Problem]:
    """A warning where the certificate is not valid yet, or not for long."""
    try:
        end = certificate_end(tls)
    except CertificateError:  # renewed by somebody between two looks: the next load sees what it is
        return []
    mark = document.mark_of((*path, "certfile"))
    assert mark is not None
    if not end:
        return [Problem(mark, (*path, "certfile"), "the certificate is not valid yet: is the clock right?")]
    days = int(end - time.time()) // 86_400
    if days >= EXPIRY_WARNING_DAYS:
        return []
    when = time.strftime("%Y-%m-%d", time.gmtime(end))
    return [Problem(mark, (*path, "certfile"), f"the certificate expires on {when}, in {days} days")]


def tls_settings(section: dict[str, Any], folder: Path) -> TlsSettings | None:
    """The files that `section` names, from `folder` on; None if something in it is no path or no switch."""
    files = [section.get(key) for key in ("certfile", "keyfile", "cafile")]
    certfile, keyfile, cafile = (folder / file if isinstance(file, str) and file else None for file in files)
    require = section.get("require_certificate", False)
    if certfile is None or any(file is not None and not isinstance(file, str) for file in files):
        return None
    return TlsSettings(certfile, keyfile, cafile, require) if isinstance(require, bool) else None


def is_open(listener: Listener) -> bool:
    """Whether anybody on the network may come in, as long as no user name is asked for."""
    return not is_loopback(listener.host) and not (listener.tls and listener.tls.require_certificate)


def _check_auth(document: Document, tree: dict[str, Any]) -> bool:
    """Whether anonymous clients may connect. A section that is there and doesn't say so means no."""
    if "auth" not in tree:
        return True
    section = tree["auth"]
    if not isinstance(section, dict):
        return False
    anonymous = section.get("anonymous", False)
    knows_a_way = any(section.get(key) for key in ("password_file", "plugins")) or _asks_for_certificates(tree)
    if (
        anonymous is False
        and not knows_a_way
        and not any(problem.path[:1] == ("auth",) for problem in document.problems)
    ):
        key: KeyPath = ("auth", "anonymous") if "anonymous" in section else ("auth",)
        document.add(
            key,
            "nobody could connect: name a password_file, plugins, or a listener with `tls: {cafile: ...}`; "
            "or let everybody in with `anonymous: true`, with listeners on 127.0.0.1",
            document.key_mark_of(key),
        )
    return anonymous is True


def _asks_for_certificates(tree: dict[str, Any]) -> bool:
    listeners = tree.get("listeners")
    sections = (
        [item.get("tls") for item in listeners.values() if isinstance(item, dict)]
        if isinstance(listeners, dict)
        else []
    )
    return any(isinstance(tls, dict) and tls.get("cafile") for tls in sections)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`. Of names, only localhost is taken for certain."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def parse_address(text: str) -> tuple[str, int] | None:
    """(host, port) of `127.0.0.1:1883` or `[::1]:1883`; None for anything else."""
    host, colon, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if not colon or not host or (":" in host and not bracketed):
        return None
    if not (port.isascii() and port.isdecimal() and int(port) <= 65_535):
        return None
    return (host[1:-1] if bracketed else host), int(port)
