"""The server's own OpenAPI document: what it says is so."""

from __future__ import annotations

import json

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode, checks

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
    for operation in operations:
        modes = list(GenerationMode) if operation.method == "post" else [GenerationMode.POSITIVE]
        for mode in modes:

            @given(operation.as_strategy(generation_mode=mode))
            @quick
            def check(case: schemathesis.Case) -> None:
                case.call_and_validate(checks=CHECKS, timeout=60)

            check()
    assert len(operations) > 10


def test_every_route_is_documented_with_its_errors(http) -> None:
    paths = http.get("/openapi.json").json()["paths"]
    wanted = """
        /v1/chat/completions /v1/completions /v1/responses /v1/messages /v1/messages/count_tokens
        /v1/models /v1/models/{id} /tokenize /detokenize /health /ping /load /version /capabilities
        /plugins
    """
    assert set(wanted.split()) <= set(paths)
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


def test_the_page_of_the_document_is_served(http) -> None:
    assert "/openapi.json" in http.get("/docs").text
