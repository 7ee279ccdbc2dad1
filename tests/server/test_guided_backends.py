"""Backends whose masks come from a child, named in a request."""

from __future__ import annotations

import json
import re

import pytest
from jsonschema import validate

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "people": {"type": "integer", "minimum": 1, "maximum": 99},
    },
    "required": ["city", "people"],
    "additionalProperties": False,
}
QUESTION = {"messages": [{"role": "user", "content": "How many people live in Paris?"}]}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["outlines", "lm_format_enforcer"])
def test_a_backend_that_is_named_holds_the_answer_or_refuses(http, name) -> None:
    def ask(**fields):
        body = {**QUESTION, "max_tokens": 120, "guided_decoding_backend": name, **fields}
        return http.post("/v1/chat/completions", json=body)

    for fields in (
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": SCHEMA},
            }
        },
        {"guided_regex": "[ab]{3}-[0-9]"},
    ):
        reply = ask(n=2, **fields)
        assert reply.status_code == 200, reply.text
        assert reply.json()["guided"]["backend"] == name
        for choice in reply.json()["choices"]:
            text = choice["message"]["content"]
            if "guided_regex" in fields:
                assert re.fullmatch("[ab]{3}-[0-9]", text)
            else:
                validate(json.loads(text), SCHEMA)
    reply = ask(guided_grammar='start: "a"')
    assert reply.status_code == 400
    assert f"{name} lacks grammar" in reply.json()["error"]["message"]
    unnamed = http.post("/v1/chat/completions", json={**QUESTION, "guided_regex": "[ab]"})
    assert unnamed.json()["guided"]["backend"] == "llguidance"
