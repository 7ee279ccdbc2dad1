"""Replies and events of all three APIs are what the types of OpenAI's and Anthropic's packages say.

Their clients take anything; others, as TypeScript's, are as strict as this is.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from anthropic.types import MessageTokensCount
from openai.types import Model

from client_types import CHAT, MESSAGES, RESPONSES, TEXT, check_events, check_reply

RECORDED: list[dict[str, Any]] = json.loads(
    (Path(__file__).parent / "recorded" / "clients.json").read_text()
)
"""What clients send, each recorded from its package with texts cut, by a name of its."""
HELLO = [{"role": "user", "content": "Hello"}]
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "string", "maxLength": 5}},
    "required": ["a"],
    "additionalProperties": False,
}
FUNCTION = {"name": "f", "description": "d", "parameters": SCHEMA}
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": HELLO, "max_tokens": 24},
    TEXT: {"prompt": "Hello", "max_tokens": 8},
    RESPONSES: {"input": "Hello", "max_output_tokens": 24},
    MESSAGES: {"model": "octavo/tiny", "messages": HELLO, "max_tokens": 24},
}
ASKED: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {"n": 2, "logprobs": True, "top_logprobs": 2}),
    (CHAT, {"tools": [{"type": "function", "function": FUNCTION}], "tool_choice": "required"}),
    (CHAT, {"response_format": {"type": "json_object"}}),
    (CHAT, {"max_tokens": 2, "stop": ["zz"]}),
    (TEXT, {}),
    (TEXT, {"n": 2, "logprobs": 1}),
    (RESPONSES, {"include": ["message.output_text.logprobs"], "top_logprobs": 2}),
    (RESPONSES, {"tools": [{"type": "function", **FUNCTION}], "tool_choice": "required"}),
    (RESPONSES, {"text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}}}),
    (RESPONSES, {"max_output_tokens": 2, "instructions": "Be brief.", "metadata": {"a": "b"}}),
    (RESPONSES, {"reasoning": {"effort": "none"}, "truncation": "disabled"}),
    (RESPONSES, {"background": True}),
    (MESSAGES, {"tools": [{"name": "f", "input_schema": SCHEMA}], "tool_choice": {"type": "any"}}),
    (MESSAGES, {"stop_sequences": ["e"]}),
    (MESSAGES, {"max_tokens": 2, "system": "Be brief."}),
]


@pytest.mark.parametrize(("path", "more"), ASKED)
def test_replies_and_events_have_the_packages_types(http, path, more) -> None:
    body = {**BODIES[path], **more}
    reply = http.post(path, json=body)
    assert reply.status_code == 200, reply.text
    check_reply(path, reply.text)
    usage = {"stream_options": {"include_usage": True}} if path in (CHAT, TEXT) else {}
    check_events(path, http.post(path, json={**body, **usage, "stream": True}).text)


@pytest.mark.parametrize("recorded", RECORDED, ids=lambda each: each["client"])
def test_requests_of_clients_are_answered_in_the_packages_types(http, recorded) -> None:
    path, body = recorded["path"], recorded["body"]
    reply = http.post(path, json=body)
    assert reply.status_code == 200, reply.text
    if body.get("stream"):
        check_events(path, reply.text)
        assert '"error":{' not in reply.text
    else:
        check_reply(path, reply.text)


def test_requests_of_all_clients_are_there() -> None:
    names = {each["client"] for each in RECORDED}
    wanted = "langchain agents litellm litellm_proxy inspect pydantic_ai instructor smolagents dspy"
    coding = "opencode qwen_code pi_chat pi_responses pi_anthropic continue cline aider"
    for client in f"{wanted} llm guidance ai_sdk {coding}".split():
        assert any(name.startswith(client) for name in names), client


def test_counts_and_models_have_them_too(http) -> None:
    count = http.post(f"{MESSAGES}/count_tokens", json={"model": "", "messages": HELLO})
    MessageTokensCount.model_validate_json(count.text, strict=True)
    for model in http.get("/v1/models").json()["data"]:
        Model.model_validate(model, strict=True)
