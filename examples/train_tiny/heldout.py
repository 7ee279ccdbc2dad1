"""The test: questions in wordings, about names and numbers and for tools that training never saw.

``held_out_strings`` is what the corpus leaves out; ``cases`` and ``capital_cases`` are the test.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from examples.train_tiny.chat import Field, Tool, Turn, call_text, object_schema
from examples.train_tiny.templates import expand
from examples.train_tiny.toolcalls import NO_TOOL, NO_TOOLS_AT_ALL
from examples.train_tiny.words import json_type, load

SEED = 17
NUM_EXTRACTIONS, NUM_TOOL_CALLS, NUM_WITHOUT_TOOL, NUM_RESULTS = 100, 130, 20, 20
REPLACED_BY_PLACES = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True)
class Case:
    """A question, and what is right: one of ``texts``, or the JSON value, or the call."""

    kind: str
    turns: tuple[Turn, ...]
    tools: tuple[Tool, ...] = ()
    system: str = ""
    texts: tuple[str, ...] = ()
    value: dict[str, Any] | None = None
    call: dict[str, Any] | None = None
    contains: str = ""
    fields: tuple[Field, ...] = field(default=())

    def messages(self) -> list[dict[str, str]]:
        turns = (Turn("system", self.system), *self.turns) if self.system else self.turns
        return [{"role": turn.role, "content": turn.content} for turn in turns]


def held_out_strings() -> list[str]:
    """Lower-case texts that no document of the corpus may hold."""
    data = load("heldout")
    found: set[str] = set()
    for kind, values in data["values"].items():
        if kind == "human":
            found.update(part for name in values for part in name.split())
        elif kind != "few":  # 2 to 11 can't be kept out of a language
            found.update(map(str, values))
    for wordings in data["smalltalk"].values():
        found.update(wording.rstrip("?.!") for wording in wordings)
    for template in (*data["capitals"], *data["asks"], *data["systems"]):
        found.add(max(REPLACED_BY_PLACES.sub("\0", template).split("\0"), key=len).strip(" ?.:"))
    keys = {key for entry in data["extraction"] for key in entry["facts"]}
    keys |= {key for tool in data["tools"].values() for key in tool["takes"]}
    found.update(keys, (key.replace("_", " ") for key in keys), data["tools"])
    return sorted(text.lower() for text in found)


def cases() -> list[Case]:
    """The questions whose bar is 95 %."""
    rng = random.Random(SEED)
    return [
        *_smalltalk(),
        *(_extraction(rng, index) for index in range(NUM_EXTRACTIONS)),
        *_tool_calls(rng),
    ]


def capital_cases() -> list[Case]:
    """Each country once, in one of the wordings that are held out."""
    wordings = load("heldout")["capitals"]
    return [
        Case(
            "capital",
            (Turn("user", wordings[index % len(wordings)].format(country=country)),),
            contains=capital,
        )
        for index, (country, capital) in enumerate(load("capitals").items())
    ]


def _smalltalk() -> Iterator[Case]:
    for intent, wordings in load("heldout")["smalltalk"].items():
        answers = tuple(load("smalltalk")[intent]["answer"])
        for wording in wordings:
            yield Case("small talk", (Turn("user", wording),), texts=answers)


def _extraction(rng: random.Random, index: int) -> Case:
    data = load("heldout")
    entry = data["extraction"][index % len(data["extraction"])]
    value = {key: rng.choice(data["values"][kind]) for key, kind in entry["facts"].items()}
    text = expand(entry["text"], rng, {key: str(each) for key, each in value.items()})
    keys = list(value)
    rng.shuffle(keys)
    value = {key: value[key] for key in keys}
    fields = tuple(Field(key, json_type(each)) for key, each in value.items())
    slots = {
        "text": text,
        "fields": ", ".join(keys[:-1]) + f" and {keys[-1]}",
        "shape": json.dumps({field.name: field.type for field in fields}),
        "schema": json.dumps(object_schema(fields)),
    }
    if index % 8 == 7:
        system = expand(rng.choice(data["systems"]), rng, slots)
        return Case("extraction", (Turn("user", text),), system=system, value=value, fields=fields)
    ask = expand(data["asks"][index % len(data["asks"])], rng, slots)
    return Case("extraction", (Turn("user", ask),), value=value, fields=fields)


def _tool_calls(rng: random.Random) -> Iterator[Case]:
    data = load("heldout")
    names = list(data["tools"])
    tools = {name: _tool(name) for name in names}
    total = NUM_TOOL_CALLS + NUM_WITHOUT_TOOL + NUM_RESULTS
    for index in range(total):
        name = names[index % len(names)]
        asks = data["tools"][name]["asks"]
        ask, arguments = _ask(rng, name, asks[(index // len(names)) % len(asks)])
        others = rng.sample([tools[other] for other in names if other != name], rng.randint(1, 3))
        if index < NUM_TOOL_CALLS:
            available = [*others, tools[name]]
            rng.shuffle(available)
            call = {"name": name, "arguments": arguments}
            yield Case("tool call", (Turn("user", ask),), tuple(available), call=call)
        elif index < NUM_TOOL_CALLS + NUM_WITHOUT_TOOL:
            unknown = tuple(load("facts")["unknown_answer"])
            texts = (NO_TOOL, NO_TOOLS_AT_ALL, *unknown)
            yield Case("no tool", (Turn("user", ask),), tuple(others), texts=texts)
        else:
            yield _result(rng, tools[name], ask, arguments, index)


def _result(
    rng: random.Random, tool: Tool, ask: str, arguments: dict[str, Any], index: int
) -> Case:
    data = load("heldout")
    entry = data["results"][index % len(data["results"])]
    slots = {kind: str(rng.choice(values)) for kind, values in data["values"].items()}
    fill = re.compile("|".join(rf"\{{{kind}\}}" for kind in slots))
    result, says = (fill.sub(lambda m: slots[m[0][1:-1]], entry[key]) for key in ("result", "says"))
    called = Turn("assistant", call_text(tool.name, arguments))
    turns = (Turn("user", ask), called, Turn("tool", result))
    return Case("tool result", turns, (tool,), texts=(says,))


def _tool(name: str) -> Tool:
    data = load("heldout")["tools"][name]
    always = [key for key in data["takes"] if all(f"{{{key}}}" in ask for ask in data["asks"])]
    fields = []
    for key, kind in data["takes"].items():
        choices = tuple(kind) if isinstance(kind, list) else ()
        values = load("heldout")["values"]
        type_ = "string" if choices else kind if kind == "boolean" else json_type(values[kind][0])
        fields.append(Field(key, type_, choices, key in always))
    return Tool(name, data["does"], tuple(fields))


def _ask(rng: random.Random, name: str, template: str) -> tuple[str, dict[str, Any]]:
    """The question with its places filled, and the arguments that it gives."""
    data = load("heldout")
    arguments: dict[str, Any] = {}
    for key, kind in data["tools"][name]["takes"].items():
        if f"{{{key}}}" in template:
            arguments[key] = rng.choice(kind if isinstance(kind, list) else data["values"][kind])
        elif kind == "boolean" and key in template:
            arguments[key] = True
    slots = {key: str(value) for key, value in arguments.items()}
    return expand(template, rng, slots), arguments
