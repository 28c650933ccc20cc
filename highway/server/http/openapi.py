"""`/api/v1/openapi.json`: the API as an OpenAPI 3.1 document, for clients that are generated and for tests that probe.

Written by hand and held to the routes by a test: each path that is served is described, and no other.
"""

from __future__ import annotations

from typing import Any

from aiohttp import web

from highway import __version__

from .room import Room

__all__ = ["OpenApi", "document"]

Schema = dict[str, Any]

_FROM = (
    "`earliest`, `latest`, an offset (`1234`), the last n messages (`-100`), a time (`@1790000000000`,"
    " `@2026-11-29T18:00:00Z`), or how long ago (`15m`, `2h`, `7d`)"
)


def _object(**properties: Schema) -> Schema:
    """An object that has all of these, and may have more."""
    return {"type": "object", "properties": properties, "required": list(properties)}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _list(of: Schema) -> Schema:
    return {"type": "array", "items": of}


def _or_null(kind: str) -> Schema:
    return {"type": [kind, "null"]}


_TEXT: Schema = {"type": "string"}
_FLAG: Schema = {"type": "boolean"}
_NUMBER: Schema = {"type": "number", "minimum": 0}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_OFFSET: Schema = {"type": "integer", "minimum": 0, "maximum": 2**63 - 1}
_STATE: Schema = {"type": "string", "enum": ["LIVE", "CATCHUP", "OFFLINE"]}
_DELETION = _object(log=_TEXT, segments=_COUNT, records=_COUNT, bytes=_COUNT, from_offset=_OFFSET, to_offset=_OFFSET)

SCHEMAS: dict[str, Schema] = {
    "Problem": _object(title=_TEXT, status={"type": "integer"}, detail=_TEXT),
    "OffsetProblem": _object(
        title={"type": "string", "enum": ["OFFSET_NOT_FOUND", "OFFSET_GAP", "OFFSET_CORRUPT"]},
        status={"type": "integer", "const": 404},
        detail=_TEXT,
        log_start_offset=_OFFSET,
        high_watermark=_OFFSET,
    ),
    "Status": _object(
        uptime_seconds=_NUMBER,
        writable=_FLAG,
        fault=_or_null("string"),
        recovery=_TEXT,
        clients_connected=_COUNT,
        sessions=_COUNT,
        subscriptions=_COUNT,
        retained=_COUNT,
        publish_received=_COUNT,
        publish_sent=_COUNT,
        publish_dropped=_COUNT,
        unsynced_bytes=_COUNT,
        backlog_bytes=_COUNT,
    ),
    "Log": _object(
        log=_TEXT,
        topics=_list(_TEXT),
        durability={"type": "string", "enum": ["FAST", "BALANCED", "SAFE"]},
        log_start_offset=_OFFSET,
        high_watermark=_OFFSET,
        log_end_offset=_OFFSET,
        records=_COUNT,
        bytes=_COUNT,
        raw_bytes=_COUNT,
        ratio=_or_null("number"),
        rate=_NUMBER,
        segments=_COUNT,
        gaps=_list({"type": "object", "required": ["from", "to", "reason", "when_ms"]}),
        oldest_ms=_or_null("integer"),
        newest_ms=_or_null("integer"),
        readers=_COUNT,
    ),
    "Record": {
        **_object(offset=_OFFSET, timestamp=_COUNT, topic=_TEXT, qos={"enum": [0, 1, 2]}, retain=_FLAG),
        "oneOf": [
            {"properties": {"payload": _TEXT}, "required": ["payload"]},
            {"properties": {"payload_base64": _TEXT}, "required": ["payload_base64"]},
        ],
    },
    "Session": _object(
        client=_TEXT,
        online=_FLAG,
        peer=_or_null("string"),
        persistent=_FLAG,
        state=_STATE,
        subscriptions=_COUNT,
        lag=_COUNT,
        inflight=_COUNT,
        window_full_since_ms=_or_null("integer"),
        expires_at_ms=_or_null("integer"),
    ),
    "SessionDetail": {
        "allOf": [
            _ref("Session"),
            _object(filters=_list({}), positions=_list({}), groups=_list({}), missed=_list({}), lag_seconds=_NUMBER),
        ]
    },
    "Moved": _object(client=_TEXT, positions={"type": "object", "additionalProperties": _OFFSET}),
    "Plan": _object(changes=_list({"type": "object"}), deletes_data=_FLAG, warnings=_list(_TEXT)),
    "Deletion": _DELETION,
    "Configuration": _object(source=_TEXT, effective={"type": "object"}),
}


def _content(media_type: str, schema: Schema) -> Schema:
    return {"content": {media_type: {"schema": schema}}}


def _json(schema: Schema, text: str = "Done") -> Schema:
    return {"description": text, **_content("application/json", schema)}


def _problem(text: str, schema: str = "Problem") -> Schema:
    return {"description": text, **_content("application/problem+json", _ref(schema))}


_PROBLEMS: dict[int, Schema] = {
    400: _problem("A parameter is wrong"),
    401: _problem("The bearer token is missing or wrong"),
    403: _problem("Asked for by a page of a stranger, or served on the socket in the data directory only"),
    404: _problem("There is none"),
    409: _problem("It would delete data, and that was not allowed"),
    422: _problem("The configuration is wrong; nothing has changed"),
    500: _problem("It failed; nothing has changed"),
    503: _problem("The broker is still starting, or read-only"),
}


def _query(name: str, text: str, schema: Schema = _TEXT, *, required: bool = False) -> Schema:
    return {"name": name, "in": "query", "required": required, "description": text, "schema": schema}


def _operation(
    name: str, text: str, answers: dict[int, Schema], *parameters: Schema, problems: tuple[int, ...] = ()
) -> Schema:
    responses = {**answers, **{status: _PROBLEMS[status] for status in (401, 403, *problems)}}
    return {
        "operationId": name,
        "summary": text,
        "parameters": list(parameters),
        "responses": {str(status): responses[status] for status in sorted(responses)},
    }


def _path(name: str, text: str, schema: Schema = _TEXT) -> Schema:
    return {"name": name, "in": "path", "required": True, "description": text, "schema": schema}


_LOG = _path("log", "Name of a log; `/` in it as %2F", {"type": "string", "minLength": 1})
_CLIENT = _path("client", "Client id, percent-encoded", {"type": "string", "minLength": 1})
_TOPIC = _query("topic", "Only topics that match this filter; default `#`")
_LINES = {
    "description": "One JSON object a line, while the log is read",
    **_content("application/jsonl", _ref("Record")),
}
_TEXT_LINE = {"description": "A line of text", **_content("text/plain", _TEXT)}

PATHS: dict[str, dict[str, Schema]] = {
    "/livez": {"get": _operation("livez", "Whether the process answers", {200: _TEXT_LINE})},
    "/readyz": {
        "get": _operation(
            "readyz",
            "Whether it is recovered, listening and not read-only; what is degraded beside that",
            {200: _TEXT_LINE, 503: _TEXT_LINE},
        )
    },
    "/metrics": {"get": _operation("metrics", "Metrics for Prometheus", {200: _TEXT_LINE})},
    "/api/v1/openapi.json": {"get": _operation("openapi", "This document", {200: _json({"type": "object"})})},
    "/api/v1/status": {"get": _operation("status", "The broker as a whole", {200: _json(_ref("Status"))})},
    "/api/v1/topics": {"get": _operation("topics", "Every log", {200: _json(_list(_ref("Log")))})},
    "/api/v1/logs/{log}": {"get": _operation("log", "One log", {200: _json(_ref("Log"))}, _LOG, problems=(404,))},
    "/api/v1/logs/{log}/records": {
        "get": _operation(
            "records",
            "Stored records, streamed",
            {200: _LINES},
            _LOG,
            _query("from", f"{_FROM}; default `earliest`"),
            _query("until", "The same; the first record that is not wanted. Default: what is visible now"),
            _TOPIC,
            _query("limit", "At most so many", _COUNT),
            problems=(400, 404),
        )
    },
    "/api/v1/logs/{log}/records/{offset}": {
        "get": _operation(
            "record",
            "One record",
            {
                200: _json(_ref("Record")),
                404: {
                    "description": "No such log, or nothing at that offset: the range of those that there are is told",
                    **_content("application/problem+json", {"anyOf": [_ref("OffsetProblem"), _ref("Problem")]}),
                },
            },
            _LOG,
            _path("offset", "Offset", _OFFSET),
            problems=(400,),
        )
    },
    "/api/v1/sessions": {"get": _operation("sessions", "Every session", {200: _json(_list(_ref("Session")))})},
    "/api/v1/sessions/{client}": {
        "get": _operation("session", "One session", {200: _json(_ref("SessionDetail"))}, _CLIENT, problems=(404,)),
        "delete": _operation(
            "dropSession", "End it for good", {204: {"description": "It has ended"}}, _CLIENT, problems=(404,)
        ),
    },
    "/api/v1/sessions/{client}/reset": {
        "post": _operation(
            "resetSession",
            "Move its ordinary subscriptions",
            {200: _json(_ref("Moved"))},
            _CLIENT,
            _query("to", _FROM, required=True),
            problems=(400, 404),
        )
    },
    "/api/v1/events": {
        "get": _operation(
            "events",
            "Server-sent events: `history` and `state` of the broker, or with `log` its new `records`",
            {200: {"description": "Until either side ends it", **_content("text/event-stream", _TEXT)}},
            _query("log", "Follow this log"),
            _TOPIC,
            problems=(400, 404),
        )
    },
    "/api/v1/config": {
        "get": _operation("config", "The configuration in force", {200: _json(_ref("Configuration"))}, problems=(503,))
    },
    "/api/v1/config/plan": {
        "post": _operation(
            "planConfig",
            "What a reload would change",
            {200: _json(_ref("Plan"))},
            _query("file", "Another file than the one that was started with"),
            problems=(409, 422, 500, 503),
        )
    },
    "/api/v1/reload": {
        "post": _operation(
            "reload",
            "Put the files' configuration in force, all of it or nothing",
            {200: _json(_ref("Plan"))},
            _query("allow_trim", "Also where that deletes data", {"enum": ["true", "false"]}),
            problems=(409, 422, 500, 503),
        )
    },
    "/api/v1/retention": {
        "get": _operation(
            "retention",
            "What retention, or a trim up to `before`, would delete now",
            {200: _json(_list(_ref("Deletion")))},
            _query("log", "Only this log"),
            _query("before", f"First offset to stay: {_FROM}"),
            problems=(400, 404),
        )
    },
    "/api/v1/retention/trim": {
        "post": _operation(
            "trim",
            "Delete the whole segments of a log that lie before an offset",
            {200: _json(_list(_ref("Deletion")))},
            _query("log", "The log", required=True),
            _query("before", f"First offset to stay: {_FROM}", required=True),
            problems=(400, 404),
        )
    },
}


def document() -> dict[str, Any]:
    """The OpenAPI document."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Highway",
            "version": __version__,
            "description": "What the broker and its logs hold. Errors are problem details (RFC 9457).",
        },
        "paths": PATHS,
        "components": {
            "schemas": SCHEMAS,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"token": []}],
    }


class OpenApi(Room):
    """The document itself."""

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/api/v1/openapi.json", self._document)]

    async def _document(self, _: web.Request) -> web.Response:
        return web.json_response(document())
