"""/docs: the OpenAPI document as one page, which needs no other file and no network."""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from importlib.resources import files
from string import Template
from typing import Any, Final

from octavo.server.http.openapi import ERRORS

_EXAMPLES: Final[Mapping[str, Any]] = {
    "messages": [{"role": "user", "content": "Hello!"}],
    "prompt": "Once upon a time",
    "input": "Hello!",
    "text": "Once upon a time",
    "tokens": [1, 2, 3],
    "max_tokens": 16,
}
"""Values of the fields that requests need, by name."""

_KEY_FIELD: Final = (
    '<p><label>API key <input id="key" type="password" autocomplete="off"></label> '
    "<span class=dim>goes with each request from this page, and is kept nowhere else</span></p>"
)

Object = Mapping[str, Any]


def docs_page(document: Object) -> str:
    """Return the page of a document as ``openapi.document`` makes it."""
    info, schemas = document["info"], document["components"]["schemas"]
    operations = [
        _operation(path, method, operation, schemas)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    errors = [f"<tr><td>{status}<td>{escape(text)}" for status, text in ERRORS.items()]
    title = escape(f"{info['title']} {info['version']}")
    body = [
        f"<h1>{title} <small>what this server answers</small></h1>",
        '<p>For programs: <a href="openapi.json">openapi.json</a></p>',
        *([_KEY_FIELD] if "securitySchemes" in document["components"] else []),
        *operations,
        "<h2>Errors</h2>",
        f"<table>{''.join(errors)}</table>",
        "<h2>Types</h2>",
        *(_type(name, schema) for name, schema in schemas.items()),
    ]
    page = Template((files("octavo.server.http") / "docs_page.html").read_text(encoding="utf-8"))
    return page.substitute(title=title, body="\n".join(body))


def _operation(path: str, method: str, operation: Object, schemas: Object) -> str:
    """What it is for, what it takes and gives, and a form that sends it."""
    takes = _content(operation.get("requestBody", {}))
    gives = _content(operation.get("responses", {}).get("200", {}))
    parts = [
        f"<details><summary><b>{escape(method.upper())}</b> <code>{escape(path)}</code> ",
        f"{escape(str(operation.get('summary', '')))}</summary>",
    ]
    if takes:
        parts.append(f"<p>takes {' or '.join(takes)}</p>")
    parts.append(f"<p>gives {' or '.join(gives) or 'an answer'}</p>")
    # Relative, so that it holds below a --root-path too.
    parts.append(f'<form data-method="{escape(method.upper())}" data-path="{escape(path[1:])}">')
    for given in operation.get("parameters", ()):
        name = escape(str(given.get("name")))
        parts.append(f'<p>{name} <input name="{name}" required></p>')
    if takes:
        example = json.dumps(_example(operation["requestBody"], schemas), indent=2)
        rows = example.count("\n") + 1
        parts.append(f'<textarea rows="{rows}" spellcheck="false">{escape(example)}</textarea>')
    parts.append("<p><button>Send</button></p><pre></pre></form></details>")
    return "".join(parts)


def _content(described: Object) -> list[str]:
    return [
        f"{_kind(content.get('schema', {}))} <span class=dim>as {escape(kind)}</span>"
        for kind, content in described.get("content", {}).items()
    ]


def _example(body: Object, schemas: Object) -> Object:
    """A value for each field that must be there; where none must, for the first that is known.

    Of several types, the first one's.
    """
    schema = next(iter(body["content"].values())).get("schema", {})
    schema = schema.get("anyOf", [schema])[0]
    schema = schemas.get(_name(schema), schema)
    known = [name for name in _EXAMPLES if name in schema.get("properties", {})]
    needed = [name for name in known if name in schema.get("required", ())]
    return {name: _value(name, schema["properties"][name]) for name in needed or known[:1]}


def _value(name: str, of: Object) -> Any:
    """The field's value; a batch has a list of such."""
    is_batch = name == "messages" and of.get("items", {}).get("type") == "array"
    return [_EXAMPLES[name]] if is_batch else _EXAMPLES[name]


def _type(name: str, schema: Object) -> str:
    described = escape(str(schema.get("description", "")))
    rows = "".join(
        f"<tr><td><code>{escape(field)}</code><td>{_kind(of)}<td class=dim>{_default(of)}"
        + ("required" if field in schema.get("required", ()) else "")
        for field, of in schema.get("properties", {}).items()
    )
    return (
        f'<details id="{escape(name)}"><summary><code>{escape(name)}</code> {described}</summary>'
        f"<table>{rows}</table></details>"
    )


def _default(schema: Object) -> str:
    default = schema.get("default")
    return "" if default in (None, "", [], {}) else f"default {escape(json.dumps(default))}"


def _name(schema: Object) -> str:
    return str(schema.get("$ref", "")).rpartition("/")[2]


def _kind(schema: Object) -> str:
    """A type in words, with links to those that have names."""
    if name := _name(schema):
        return f'<a href="#{escape(name)}">{escape(name)}</a>'
    if "anyOf" in schema:
        return " or ".join(_kind(each) for each in schema["anyOf"] if each != {"type": "null"})
    if "enum" in schema or "const" in schema:
        values = schema.get("enum", [schema.get("const")])
        return " or ".join(f"<code>{escape(json.dumps(value))}</code>" for value in values)
    if "items" in schema:
        return f"list of {_kind(schema['items'])}"
    kinds = schema.get("type", "any")
    return escape(" or ".join(kinds) if isinstance(kinds, list) else str(kinds))
