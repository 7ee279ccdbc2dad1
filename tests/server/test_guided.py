"""Structured output over HTTP: every way to ask for it, and what is refused."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
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
TAG = {
    "type": "structural_tag",
    "structures": [{"begin": "<n>", "schema": {"type": "integer"}, "end": "</n>"}],
    "triggers": ["<n>"],
}
ASKS: dict[str, tuple[dict[str, Any], str]] = {
    "response_format json_schema": (
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": SCHEMA},
            }
        },
        "schema",
    ),
    "response_format json_object": ({"response_format": {"type": "json_object"}}, "object"),
    "response_format structural_tag": ({"response_format": TAG}, "text"),
    "structured_outputs json": ({"structured_outputs": {"json": SCHEMA}}, "schema"),
    "structured_outputs regex": ({"structured_outputs": {"regex": "[ab]{3}-[0-9]"}}, "regex"),
    "structured_outputs choice": ({"structured_outputs": {"choice": ["yes", "no"]}}, "choice"),
    "structured_outputs grammar": (
        {"structured_outputs": {"grammar": 'start: /[ab]{3}/ "-" /[0-9]/'}},
        "regex",
    ),
    "structured_outputs json_object": ({"structured_outputs": {"json_object": True}}, "object"),
    "structured_outputs structural_tag": (
        {"structured_outputs": {"structural_tag": json.dumps(TAG)}},
        "text",
    ),
    "guided_json": ({"guided_json": SCHEMA}, "schema"),
    "guided_json as text": ({"guided_json": json.dumps(SCHEMA)}, "schema"),
    "guided_regex": ({"guided_regex": "[ab]{3}-[0-9]"}, "regex"),
    "guided_choice": ({"guided_choice": ["yes", "no"]}, "choice"),
    "guided_grammar": ({"guided_grammar": 'start: /[ab]{3}/ "-" /[0-9]/'}, "regex"),
    "guided_grammar in GBNF": ({"guided_grammar": 'root ::= [ab]{3} "-" [0-9]'}, "regex"),
    "one under its old name and its new one": (
        {"guided_regex": "[ab]{3}-[0-9]", "structured_outputs": {"regex": "[ab]{3}-[0-9]"}},
        "regex",
    ),
    "a text without a choice": ({"guided_choice": ["yes"]}, "choice"),
    "a backend by name": (
        {"guided_regex": "[ab]{3}-[0-9]", "guided_decoding_backend": "llguidance"},
        "regex",
    ),
}
ROUTES = ("completions", "chat/completions", "responses")


def assert_holds(kind: str, text: str) -> None:
    match kind:
        case "schema":
            validate(json.loads(text), SCHEMA)
        case "object":
            assert text.startswith("{")  # this model does not always come to an end
        case "regex":
            assert re.fullmatch("[ab]{3}-[0-9]", text)
        case "choice":
            assert text in ("yes", "no")
        case _:
            assert all(
                re.match("<n>-?[0-9]+</n>", text[found.start() :])
                for found in re.finditer("<n>", text)
            )


def ask(http: httpx.Client, route: str, **more: Any) -> httpx.Response:
    body: dict[str, Any] = {"temperature": 0, "seed": 7, **more}
    question = "How many people live in Paris?"
    match route:
        case "completions":
            body |= {"prompt": question, "max_tokens": 120}
        case "responses":
            body |= {"input": question, "max_output_tokens": 120}
            del body["seed"]
        case _:
            body |= {"messages": [{"role": "user", "content": question}], "max_tokens": 120}
    return http.post(f"/v1/{route}", json=body)


def text_of(route: str, reply: httpx.Response) -> str:
    assert reply.status_code == 200, reply.text
    data = reply.json()
    match route:
        case "completions":
            return data["choices"][0]["text"]
        case "responses":
            return data["output"][0]["content"][0]["text"]
        case _:
            return data["choices"][0]["message"]["content"]


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("how", ASKS)
def test_every_way_to_ask_holds_the_answer_to_it(http, route, how) -> None:
    fields, kind = ASKS[how]
    assert_holds(kind, text_of(route, ask(http, route, **fields)))


@pytest.mark.parametrize("form", [{"type": "json_schema", "name": "x", "schema": SCHEMA}])
def test_responses_take_a_format_of_their_own(http, form) -> None:
    reply = ask(http, "responses", text={"format": form})
    assert_holds("schema", text_of("responses", reply))
    assert reply.json()["text"]["format"] == form
    object_reply = ask(http, "responses", text={"format": {"type": "json_object"}})
    assert_holds("object", text_of("responses", object_reply))


@pytest.mark.parametrize("route", ROUTES)
def test_the_answer_says_what_it_was_held_to(http, route) -> None:
    told = ask(http, route, guided_regex="[ab]{3}-[0-9]").json()["guided"]
    assert (told["constraint"], told["backend"]) == ("regex", "llguidance")
    assert told["compile_seconds"] >= 0
    assert "guided" not in ask(http, route).json()


@pytest.mark.parametrize("route", ROUTES[:2])
def test_a_stream_joined_is_the_whole_answer_and_ends_with_the_receipt(http, route) -> None:
    fields = {"guided_json": SCHEMA, "n": 2}
    whole = ask(http, route, **fields).json()
    body = {"temperature": 0, "seed": 7, "stream": True, **fields}
    question = "How many people live in Paris?"
    if route == "completions":
        body |= {"prompt": question, "max_tokens": 120}
    else:
        body |= {"messages": [{"role": "user", "content": question}], "max_tokens": 120}
    texts, receipts = ["", ""], []
    with http.stream("POST", f"/v1/{route}", json=body) as reply:
        for line in reply.iter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line[6:])
            for choice in chunk["choices"]:
                piece = choice["text"] if route == "completions" else choice["delta"].get("content")
                texts[choice["index"]] += piece or ""
                if choice["finish_reason"] is not None:
                    receipts.append(chunk["guided"]["backend"])
    assert receipts == ["llguidance"] * 2
    for text, choice in zip(texts, whole["choices"], strict=True):
        assert text == (choice.get("text") or choice["message"]["content"])
        assert_holds("schema", text)


def test_a_streamed_response_ends_with_the_receipt(http) -> None:
    body = {"input": "a", "guided_regex": "[ab]{3}", "max_output_tokens": 20, "stream": True}
    lines = http.post("/v1/responses", json=body).text.split("\n")
    told = [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
    assert "guided" not in told[0]["response"]
    assert told[-1]["response"]["guided"]["constraint"] == "regex"


REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "two constraints": (
        {"guided_regex": "a", "response_format": {"type": "json_object"}},
        "guided_regex",
        "give one",
    ),
    "two that Python holds for equal": (
        {"guided_json": {"const": 1}, "structured_outputs": {"json": {"const": True}}},
        "guided_json",
        "give one",
    ),
    "two in one": ({"structured_outputs": {"json": {}, "regex": "a"}}, "structured_outputs", "one"),
    "none": ({"structured_outputs": {}}, "structured_outputs", "names no constraint"),
    "an unknown one": ({"structured_outputs": {"xml": "a"}}, "structured_outputs", "xml"),
    "an unknown format": ({"response_format": {"type": "xml"}}, "response_format", "xml"),
    "no schema": ({"response_format": {"type": "json_schema"}}, "response_format", "schema"),
    "a bad pattern": ({"guided_regex": "("}, "guided_regex", "regular expression"),
    "a bad grammar": ({"guided_grammar": "start: ("}, "guided_grammar", ""),
    "no choices": ({"guided_choice": []}, "guided_choice", "1 to"),
    "no JSON": ({"guided_json": "{"}, "guided_json", "schema"),
    "a backend that is none": (
        {"guided_regex": "a", "guided_decoding_backend": "none"},
        "guided_regex",
        "not registered",
    ),
    "a backend alone": ({"guided_decoding_backend": "llguidance"}, "guided_decoding_backend", ""),
    "a lookahead": (
        {"guided_json": {"type": "string", "pattern": "^(?=a)a$"}},
        "guided_json",
        "lookahead",
    ),
    "a keyword that cannot be enforced": (
        {"guided_json": {"type": "array", "items": {"type": "string"}, "uniqueItems": True}},
        "guided_json",
        "uniqueItems",
    ),
    "a schema that nothing satisfies": (
        {"guided_json": {"type": "integer", "minimum": 3, "maximum": 1}},
        "guided_json",
        "no value satisfies the schema",
    ),
    "whitespace": (
        {"guided_regex": "a", "guided_whitespace_pattern": " "},
        "guided_whitespace_pattern",
        "",
    ),
    "no end": ({"guided_regex": "a", "ignore_eos": True}, "ignore_eos", "ignore_eos"),
}


@pytest.mark.parametrize("route", ROUTES[:2])
@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_enforced_is_refused_and_names_the_field(http, route, case) -> None:
    fields, param, text = REFUSED[case]
    reply = ask(http, route, **fields)
    assert reply.status_code == 400, reply.text
    error = reply.json()["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", param)
    assert text in error["message"]


@pytest.mark.parametrize("form", [None, {"type": "text"}])
def test_asking_for_text_asks_for_nothing(http, form) -> None:
    free = ask(http, "completions").json()["choices"]
    assert ask(http, "completions", response_format=form).json()["choices"] == free
