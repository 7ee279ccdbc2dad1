"""The server's own OpenAPI document: what it says is so."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode, checks

from octavo.server.http.docs_page import docs_page

CHECKS = [
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
    checks.allow_header_conformance,
]


@pytest.fixture(scope="session")
def document(server) -> schemathesis.BaseSchema:
    return schemathesis.openapi.from_url(f"{server.url}/openapi.json")


WITHOUT_BODY = {"/ping", "/v1/responses/{id}/cancel"}
"""Paths that take none with a POST."""
quick = settings(
    max_examples=40,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.slow
def test_no_answer_is_a_failure_or_undocumented(document) -> None:
    """Bodies by the document, and bodies that break it."""
    operations = [found.ok() for found in document.get_all_operations()]
    session = requests.Session()  # of one connection
    for operation in operations:
        modes = list(GenerationMode) if len(operation.body) else [GenerationMode.POSITIVE]
        for mode in modes:

            @given(operation.as_strategy(generation_mode=mode))
            @quick
            def check(case: schemathesis.Case) -> None:
                case.call_and_validate(checks=CHECKS, timeout=60, session=session)

            check()
    assert len(operations) > 10
    without = {o.path for o in operations if o.method == "post" and not len(o.body)}
    assert without == WITHOUT_BODY


def test_every_route_is_documented_with_its_errors(http) -> None:
    paths = http.get("/openapi.json").json()["paths"]
    wanted = """
        /v1/chat/completions /v1/completions /v1/responses /v1/messages /v1/messages/count_tokens
        /v1/responses/{id} /v1/responses/{id}/input_items /v1/responses/input_tokens
        /v1/responses/{id}/cancel
        /v1/models /v1/models/{id} /tokenize /detokenize /invocations /health /ping /load /version
        /capabilities /plugins
    """
    assert set(wanted.split()) <= set(paths)
    assert set(paths["/ping"]) == {"get", "post"}
    for operations in paths.values():
        for operation in operations.values():
            assert {"200", "400", "401", "404", "405", "500", "503"} <= set(operation["responses"])


def test_references_of_the_document_lead_somewhere(http) -> None:
    text = http.get("/openapi.json").text
    schemas = json.loads(text)["components"]["schemas"]
    referred = {part.partition('"')[0] for part in text.split("#/components/schemas/")[1:]}
    assert referred
    assert referred <= set(schemas)


def test_anthropics_routes_have_anthropics_errors(http) -> None:
    paths = http.get("/openapi.json").json()["paths"]
    for path, name in (("/v1/messages", "AnthropicError"), ("/v1/responses", "Error")):
        content = paths[path]["post"]["responses"]["400"]["content"]["application/json"]
        assert content["schema"]["$ref"].endswith(f"/{name}")


class Page(HTMLParser):
    """What a browser would find in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: set[str] = set()
        self.forms: set[tuple[str, str]] = set()
        self.bodies: list[str] = []
        self.posts: list[str] = []
        """The paths of forms with a body, in the same order."""
        self._path = ""
        self._in_body = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids |= {given["id"]} if "id" in given else set()
        self.links |= {given[name] for name in ("href", "src", "action") if name in given}
        if tag == "form":
            self._path = "/" + given["data-path"]
            self.forms.add((given["data-method"].lower(), self._path))
        self._in_body = tag == "textarea"

    def handle_data(self, data: str) -> None:
        if self._in_body:
            self.bodies.append(data)
            self.posts.append(self._path)


def test_the_page_shows_every_operation_and_type_and_needs_no_other_file(http) -> None:
    described = http.get("/openapi.json").json()
    answer = http.get("/docs")
    assert answer.headers["content-type"].startswith("text/html")
    page = Page(answer.text)
    operations = {(method, path) for path, each in described["paths"].items() for method in each}
    assert page.forms == operations
    assert set(described["components"]["schemas"]) <= page.ids
    assert {link for link in page.links if not link.startswith("#")} == {"openapi.json"}
    assert {link[1:] for link in page.links if link.startswith("#")} <= page.ids


def test_what_the_page_would_send_is_answered(http) -> None:
    page = Page(http.get("/docs").text)
    forms = {path for method, path in page.forms if method == "post"}
    assert len(page.posts) == len(page.bodies) > 5
    assert forms - set(page.posts) == WITHOUT_BODY
    assert http.post("/ping").status_code == 200
    for path, body in zip(page.posts, page.bodies, strict=True):
        request = json.loads(body)
        if path == "/invocations" or (path.startswith("/v1/") and "token" not in path):
            request["max_tokens"] = 4
        if path == "/separate_reasoning":  # this model has no parser of its own
            request["parser"] = "qwen3"
        if path == "/v1/responses":
            request["max_output_tokens"] = request.pop("max_tokens")
        assert http.post(path, json=request).status_code == 200, path


def test_what_a_plugin_describes_is_text_in_the_page() -> None:
    operation = {"summary": "<script>alert(1)</script>", "requestBody": {"content": {"text/x": {}}}}
    bare = {"responses": {"200": {"content": {"a/b": {"schema": {"enum": ["<b>", 1]}}}}}}
    text = docs_page(
        {
            "info": {"title": "Octavo", "version": "1"},
            "paths": {'/a"b': {"post": operation}, "/{name}": {"get": bare, "put": {}}},
            "components": {"schemas": {"<T>": {"properties": {"<f>": {"default": "<d>"}}}}},
        }
    )
    assert not re.search(r"<script>alert|<T>|<f>|<d>|<b>\"", text)
    assert Page(text).forms == {("post", '/a"b'), ("get", "/{name}"), ("put", "/{name}")}


def test_the_page_of_a_server_with_keys_has_a_field_for_one() -> None:
    document = {"info": {"title": "", "version": ""}, "paths": {}, "components": {"schemas": {}}}
    assert 'id="key"' not in docs_page(document)
    has_keys = {"schemas": {}, "securitySchemes": {"key": {}}}
    text = docs_page({**document, "components": has_keys})
    assert '<input id="key" type="password" autocomplete="off">' in text
    assert 'headers.Authorization = "Bearer " + key.value' in text
    assert not re.search("localStorage|sessionStorage|cookie", text)
