"""The chat templates of examples/ show tools and results, and calls as their parsers read them."""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from markdown import ROOT, rows
from octavo.inputs.template import ChatTemplate
from octavo.testing.parsers import TOOLS
from octavo.testing.structure_texts import random_text
from octavo.tools import parsed
from octavo.tools.forms import functions
from octavo_registry import PluginHost, ToolParser

FOLDER = ROOT / "examples" / "chat_templates"
PARSERS = {path.stem: path.stem for path in FOLDER.glob("*.jinja")}
END_OF_TURN = {
    "hermes": "<|im_end|>\n",
    "llama3_json": "<|eot_id|>",
    "pythonic": "<|eot_id|>",
    "mistral": "</s>",
    "deepseek_v3": "<｜end▁of▁sentence｜>",
    "deepseek_v31": "<｜end▁of▁sentence｜>",
    "granite": "<|end_of_text|>\n",
    "internlm": "<|im_end|>\n",
}
CALLS = [
    ("get_weather", {"city": 'Pa"ris\\', "unit": "C"}),
    ("plan_trip", {"stops": ["Rome", "L'Aquila"], "direct": True, "rider": {"name": "Ünal"}}),
    ("now", {}),
]
QUESTION: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What is the weather?"},
]
templates = pytest.mark.parametrize("name", sorted(PARSERS))


@cache
def host() -> PluginHost:
    return PluginHost.discover()


@cache
def template(name: str) -> ChatTemplate:
    source = (FOLDER / f"{name}.jinja").read_text(encoding="utf-8")
    return ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"})


def parser(name: str) -> ToolParser:
    class Tokenizer:
        chat_template = (FOLDER / f"{name}.jinja").read_text(encoding="utf-8")

    return host().tool_parsers.load(PARSERS[name])(Tokenizer())


def render(name: str, messages: list[dict[str, Any]], *, begins_answer: bool = False) -> str:
    return template(name).render(messages, tools=list(TOOLS), add_generation_prompt=begins_answer)


def with_calls(content: str | None, calls: list[tuple[str, Any]]) -> list[dict[str, Any]]:
    made = [
        {
            "id": f"abcdefgh{number}",
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        }
        for number, (name, arguments) in enumerate(calls)
    ]
    results = [
        {"role": "tool", "tool_call_id": call["id"], "content": f"result {number}"}
        for number, call in enumerate(made)
    ]
    return [*QUESTION, {"role": "assistant", "content": content, "tool_calls": made}, *results]


def answer(name: str, content: str | None, calls: list[tuple[str, Any]]) -> str:
    """What the model must have written for its answer to stand so in the history."""
    prompt = render(name, QUESTION, begins_answer=True)
    history = render(name, with_calls(content, calls)[:3])
    assert history.startswith(prompt)
    return history[len(prompt) :].removesuffix(END_OF_TURN[name])


@templates
@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("content", [None, "", "I look."])
def test_calls_in_the_history_are_those_that_the_parser_reads(
    name: str, count: int, content: str | None
) -> None:
    calls = CALLS[:count]
    text = answer(name, content, calls)
    for pieces in ([text], list(text)):
        message = parsed(parser(name).stream(TOOLS), *pieces)
        found = [(call.name, json.loads(call.arguments)) for call in message.tool_calls]
        assert found == calls
        assert (message.content or "").strip() == (content or "")


# Mistral's history has ids besides, and Python's literals are no JSON.
@pytest.mark.parametrize("name", sorted(PARSERS.keys() - {"mistral", "pythonic"}))
def test_calls_that_are_demanded_are_written_as_in_the_history(name: str) -> None:
    for seed in range(20):
        form = parser(name).form(TOOLS, parallel=True)
        assert form is not None
        text = random_text(form.calls, random.Random(seed))
        calls = []
        for call in parsed(parser(name).stream(TOOLS), text).tool_calls:
            arguments = json.loads(call.arguments)
            calls.append((call.name, arguments))
            text = text.replace(call.arguments, json.dumps(arguments, ensure_ascii=False))
        assert answer(name, None, calls) == text


@templates
def test_tools_results_and_system_prompt_reach_the_model(name: str) -> None:
    conversation = [*with_calls("I look.", CALLS), {"role": "assistant", "content": "Sunny."}]
    prompt = render(name, [*conversation, {"role": "user", "content": "Thanks!"}])
    shown = ["Be brief.", "What is the weather?", "I look.", "Sunny.", "Thanks!"]
    shown += [f"result {number}" for number in range(len(CALLS))]
    shown += [each.name for each in functions(TOOLS)]
    assert [each for each in shown if each not in prompt] == []
    places = [prompt.index(f"result {number}") for number in range(len(CALLS))]
    assert places == sorted(places)
    assert "None" not in prompt.replace("None'", "")


@templates
def test_without_tools_and_system_prompt_it_is_a_plain_chat(name: str) -> None:
    prompt = template(name).render(
        [{"role": "user", "content": "Hi"}], tools=None, add_generation_prompt=True
    )
    assert "Hi" in prompt
    assert "tool" not in prompt.lower()
    assert "function" not in prompt


@templates
def test_its_parser_is_the_one_that_is_chosen_for_it(name: str) -> None:
    source = (FOLDER / f"{name}.jinja").read_text(encoding="utf-8")
    select = host().hook.select_tool_parser
    assert select(architecture="", config={}, chat_template=source) == PARSERS[name]
    assert template(name).takes_text
    assert template(name).takes_objects


def test_the_page_lists_the_templates() -> None:
    page = ROOT / "docs" / "tool-calling.md"
    listed = [Path(cell.strip("`")).stem for cell, *_ in rows(page, "Chat templates")]
    assert sorted(listed) == sorted(PARSERS) == sorted(END_OF_TURN)
