"""Checks over the listeners as a whole: two on one address, and doors that stand open to the network."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from highway.config.problems import KeyPath
    from highway.config.yaml_loader import Document

__all__ = ["check_listeners", "is_loopback", "parse_address"]


def check_listeners(document: Document, tree: dict[str, Any]) -> None:
    """Add to the problems of `document` what is wrong with the listeners and with who may use them.

    `tree` is as read and may be wrong in other ways, which are reported elsewhere.
    """
    anonymous = _check_auth(document, tree)
    listeners = tree.get("listeners")
    seen: dict[tuple[str, int], KeyPath] = {}
    for name, listener in listeners.items() if isinstance(listeners, dict) else ():
        if not isinstance(listener, dict):
            continue
        path: KeyPath = ("listeners", name)
        host, port = listener.get("bind", "127.0.0.1"), listener.get("port", 1883)
        if not isinstance(host, str) or not isinstance(port, int):
            continue
        if port and (host, port) in seen:
            first = document.key_mark_of(seen[host, port])
            document.add(
                path, f"{host} port {port} is already taken by the listener at {first}", document.key_mark_of(path)
            )
        seen.setdefault((host, port), path)
        if anonymous and not is_loopback(host) and tree.get("insecure") is not True:
            where: KeyPath = (*path, "bind") if "bind" in listener else path
            if any(problem.path == where for problem in document.problems):
                continue
            document.add(
                where,
                f"{host} is open to the network, and anybody may connect without a password; listen on 127.0.0.1, "
                "or say `insecure: true` at the top of the file if that is meant",
            )


def _check_auth(document: Document, tree: dict[str, Any]) -> bool:
    """Whether anonymous clients may connect. A section that is there and doesn't say so means no."""
    if "auth" not in tree:
        return True
    section = tree["auth"]
    if not isinstance(section, dict):
        return False
    anonymous = section.get("anonymous", False)
    if anonymous is False and not any(problem.path[:1] == ("auth",) for problem in document.problems):
        key: KeyPath = ("auth", "anonymous") if "anonymous" in section else ("auth",)
        document.add(
            key,
            "nobody could connect: this version knows no other way to log in yet than `anonymous: true`; "
            "keep the listeners on 127.0.0.1, or behind something that checks who connects",
            document.key_mark_of(key),
        )
    return anonymous is True


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
