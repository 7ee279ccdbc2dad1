"""The server's OpenAPI document, from its endpoints."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any, Final

import msgspec

from octavo.server.http.dialects import dialect_of
from octavo.server.http.keys import NO_KEYS, Keys
from octavo_registry.routes import Endpoint

_REF: Final = "#/components/schemas/{name}"
_ERROR: Final = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
_ANTHROPIC_ERROR: Final = {
    "type": "object",
    "required": ["type", "error"],
    "properties": {
        "type": {"const": "error"},
        "error": {
            "type": "object",
            "required": ["message", "type"],
            "properties": {"message": {"type": "string"}, "type": {"type": "string"}},
        },
    },
}
ERRORS: Final = {
    400: "the request is wrong",
    401: "no valid key",
    403: "not from there, or not with this key",
    404: "no such model or path",
    405: "the path takes another method",
    408: "the body came too slowly",
    409: "an adapter of that name is there",
    411: "nothing says how long the body is",
    413: "the body is too long",
    415: "the body is of another kind",
    500: "the request failed",
    503: "overloaded, draining, or without an engine",
}
_JSON: Final = "application/json"
_NAME: Final = re.compile(r"\{(\w+)\}")
_CONVERTER: Final = re.compile(r":\w+\}")
"""Starlette's "{id:path}", which OpenAPI does not know."""
_SCHEMAS: Final = "x-schemas"
"""Where an operation brings its components until the document takes them."""


def operation(
    summary: str,
    *,
    request: type | Sequence[type] = (),
    reply: type | Sequence[type] = (),
    streams: bool = False,
    content_type: str = _JSON,
    takes: str = _JSON,
    query: type | None = None,
) -> dict[str, Any]:
    """Describe an endpoint by the structs that it takes and gives, one of several or none.

    ``query`` has the parameters behind the path's question mark; all may be left out.
    """
    takes_one, gives_one = ([each] if isinstance(each, type) else each for each in (request, reply))
    schemas, components = msgspec.json.schema_components(
        [*takes_one, *gives_one], ref_template=_REF
    )
    taken, given = schemas[: len(takes_one)], schemas[len(takes_one) :]
    content: dict[str, Any] = {content_type: {"schema": _one_of(given)} if given else {}}
    if streams:
        content["text/event-stream"] = {}  # OpenAPI 3.1 has no schema for events
    described: dict[str, Any] = {
        "summary": summary,
        "responses": {"200": {"description": "the answer", "content": content}},
        _SCHEMAS: components,
    }
    if query is not None:
        given = msgspec.json.schema(query)["$defs"][query.__name__]["properties"]
        described["parameters"] = [
            {"name": name, "in": "query", "schema": schema} for name, schema in given.items()
        ]
    if taken:
        body = {"schema": _one_of(taken)}
        described["requestBody"] = {"required": True, "content": {takes: body}}
    return described


def _one_of(schemas: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return schemas[0] if len(schemas) == 1 else {"anyOf": [*schemas]}


def _error_responses(path: str) -> dict[str, Any]:
    name = "AnthropicError" if dialect_of(path).is_anthropic else "Error"
    content = {_JSON: {"schema": {"$ref": _REF.format(name=name)}}}
    return {
        str(status): {"description": text, "content": content} for status, text in ERRORS.items()
    }


def document(endpoints: Sequence[Endpoint], keys: Keys = NO_KEYS) -> dict[str, Any]:
    """Return the document; every operation may also answer with an error."""
    paths: dict[str, dict[str, Any]] = {}
    schemas: dict[str, Any] = {"Error": _ERROR, "AnthropicError": _ANTHROPIC_ERROR}
    for endpoint in endpoints:
        described = dict(endpoint.operation)
        described["responses"] = {
            **described.get("responses", {}),
            **_error_responses(endpoint.path),
        }
        if not endpoint.authenticated:
            described["security"] = []
        elif endpoint.operators_only and keys.operators:
            described["security"] = [{"operator": []}]
        schemas |= described.pop(_SCHEMAS, {})
        path = _CONVERTER.sub("}", endpoint.path)
        named = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in _NAME.findall(path)
        ]
        if named:
            described["parameters"] = [*described.get("parameters", ()), *named]
        paths.setdefault(path, {})[endpoint.method.lower()] = described
    made: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "Octavo", "version": version("octavo")},
        "paths": paths,
        "components": {"schemas": schemas},
    }
    bearer = {"type": "http", "scheme": "bearer"}
    given_keys = {"key": keys.users, "operator": keys.operators}
    schemes = {name: bearer for name, given in given_keys.items() if given}
    if schemes:
        made["components"]["securitySchemes"] = schemes
    if keys.users:
        made["security"] = [{"key": []}, *([{"operator": []}] if keys.operators else [])]
    return made
