"""HTTP: the API, metrics, health and the dashboard, on a unix socket in the data directory and on TCP."""

from __future__ import annotations

from .server import ADMIN_SOCKET, HttpServer

__all__ = ["ADMIN_SOCKET", "HttpServer"]
