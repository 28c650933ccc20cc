"""The OpenAPI document: it describes what is served, and what is served keeps to it, whatever is asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings, strategies as st
from jsonschema import Draft202012Validator
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from highway.server.http.openapi import document
from highway.server.http.server import ROOMS

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.harness.broker_process import BrokerProcess
    from tests.harness.http import Answer

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    unsupported_method,
]
# Streams that never end; and what is for people.
NOT_PROBED = ["/api/v1/events"]
NOT_DESCRIBED = {"/", "/dashboard/{name:.+}"}


def test_document_describes_every_route_and_no_other() -> None:
    served = {
        (route.method.lower(), route.path)
        for room in ROOMS
        for route in room.routes(room.__new__(room))
        if route.path not in NOT_DESCRIBED
    }
    told = {(method, path) for path, methods in document()["paths"].items() for method in methods}
    assert told == served


def test_document_is_served_and_its_schemas_are_schemas(get: Callable[..., Answer]) -> None:
    assert get("/api/v1/openapi.json").json() == document()
    for schema in document()["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)


@pytest.mark.parametrize("path", [path for path in document()["paths"] if path not in NOT_PROBED])
def test_answers_are_as_described_whatever_is_asked(path: str, broker: BrokerProcess, http_port: int) -> None:
    schema = schemathesis.openapi.from_dict(document())
    schema.config.update(base_url=f"http://127.0.0.1:{http_port}")
    for method in document()["paths"][path]:

        @given(case=schema[path][method].as_strategy(), known=st.booleans())
        @settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
        def probe(case: schemathesis.Case, *, known: bool) -> None:
            if known and "log" in case.path_parameters:
                case.path_parameters["log"] = "road"
            case.call_and_validate(checks=CHECKS, timeout=10)

        probe()
    assert not broker.lines("Traceback|ERROR")
