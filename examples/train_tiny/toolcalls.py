"""Chats in which a tool is called, or none is, and its result is put into words."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

from examples.train_tiny.chat import Chat, Field, Tool, Turn, call_text
from examples.train_tiny.fields import Fact, clause, make_fact, with_articles
from examples.train_tiny.templates import expand
from examples.train_tiny.words import Value, Words, json_type, load

NO_TOOL = "None of my tools can do that."
NO_TOOLS_AT_ALL = "I have no tools here, so I cannot do that."


class LazySlots(dict[str, str]):
    """Values by slot, drawn when a template first uses them; so it is known which ones it uses."""

    def __init__(self, words: Words, kinds: dict[str, str]) -> None:
        super().__init__()
        self._words, self._kinds = words, kinds
        self.values_used: dict[str, Value] = {}

    def __missing__(self, slot: str) -> str:
        kind = self._kinds[slot]
        if "/" in kind:
            text = self._words.rng.choice(kind.split("/"))
            value = Value(text, text)
        else:
            value = self._words.value(kind)
        self.values_used[slot] = value
        self[slot] = value.text
        return value.text


def tool_call(words: Words) -> Chat:
    """A question, the right call among several tools, and mostly what came of it."""
    make = known_tool if words.chance(0.3) else made_up_tool
    tool, ask, arguments = make(words)
    chat = Chat([Turn("user", ask)], _among_others(words, tool, ask))
    chat.turns.append(Turn("assistant", call_text(tool.name, arguments)))
    if words.chance(0.3):
        result, answer = _result(words)
        chat.turns += [Turn("tool", result), Turn("assistant", answer)]
    return chat


def no_tool_fits(words: Words) -> Chat:
    """A question for a tool that is not there."""
    make = known_tool if words.chance(0.3) else made_up_tool
    tool, ask, _ = make(words)
    drawn = other_tools(words, words.rng.randint(1, 3))
    others = [other for other in drawn if other.name != tool.name]
    answer = NO_TOOL if others else NO_TOOLS_AT_ALL
    if words.chance(0.15):
        others, answer = [], NO_TOOLS_AT_ALL
    return Chat([Turn("user", ask), Turn("assistant", answer)], others)


def other_tools(words: Words, count: int) -> list[Tool]:
    return [(known_tool if words.chance(0.3) else made_up_tool)(words)[0] for _ in range(count)]


def known_tool(words: Words) -> tuple[Tool, str, dict[str, Any]]:
    """A tool of everyday life, a question for it, and the arguments."""
    data = words.rng.choice(load("tools"))
    kinds: dict[str, str] = data["fields"]
    slots = LazySlots(words, kinds)
    ask = _as_typed(words, expand(words.rng.choice(data["asks"]), words.rng, slots))
    fields, arguments = [], {}
    for slot, kind in kinds.items():
        key = expand(data["keys"].get(slot, slot), words.rng)
        used = slots.values_used.get(slot)
        if used is None and words.chance(0.4):
            continue  # this tool has no such argument
        choices = tuple(kind.split("/")) if "/" in kind else ()
        example = (
            Value("", True) if kind == "flag" else used or words.value("code" if choices else kind)
        )
        required = used is not None and words.chance(0.7)
        fields.append(Field(key, json_type(example.json), choices, required))
        if used is not None:
            arguments[key] = used.json
    name, description = expand(data["name"], words.rng), expand(data["description"], words.rng)
    return Tool(name, description, tuple(fields)), ask, arguments


def made_up_tool(words: Words, verb: str = "", noun: str = "") -> tuple[Tool, str, dict[str, Any]]:
    """A tool that nobody has seen, a question for it, and the arguments."""
    rng = words.rng
    verb, noun = verb or words.word("verb"), noun or words.word("noun")
    slots = {
        **{"verb": verb, "Verb": verb.capitalize(), "adjective": words.word("adjective")},
        **{"noun": noun, "nouns": f"{noun}s", "Noun": noun.capitalize()},
        "other": words.word("noun"),
    }
    facts: list[Fact] = []
    for _ in range(rng.choice((0, 1, 1, 1, 2, 2, 2, 3, 4))):
        about = noun if not facts and words.chance(0.3) else ""
        facts.append(make_fact(words, {fact.field.name for fact in facts}, about))
    given = [fact for fact in facts if words.chance(0.75)]  # the others are not needed
    required = [fact for fact in given if words.chance(0.75)]
    fields = [replace(fact.field, required=fact in required) for fact in facts]
    begun, inside = _action(words, slots, given)
    clear = [fact for fact in given if only_one_fits(fact, facts, given, required)]
    ask = begun + _said(words, [fact for fact in given if fact is not inside], clear)
    if words.chance(0.15):  # and then what no argument is to hold
        ask += rng.choice((" ", ", ")) + rng.choice(load("clauses")["tails"])
    ask = _as_typed(words, with_articles(ask) + rng.choice((".", "?", "", "!")))
    description = with_articles(expand(rng.choice(load("clauses")["descriptions"]), rng, slots))
    tool = Tool(_tool_name(words, slots), description, tuple(fields))
    return tool, ask, {fact.field.name: fact.value.json for fact in given}


def only_one_fits(fact: Fact, facts: list[Fact], given: list[Fact], required: list[Fact]) -> bool:
    """Whether the value alone tells its argument: by its type, or as it is the one that must be."""
    rivals = [other for other in facts if other.form == fact.form and other is not fact]
    return not rivals or (fact in required and not any(rival in given for rival in rivals))


def _said(words: Words, facts: list[Fact], clear: list[Fact]) -> str:
    """The arguments as the question names them; of some that are ``clear``, the values alone."""
    rng, clauses = words.rng, load("clauses")
    said: list[str] = []
    for fact in facts:
        bare = fact in clear and fact.form in clauses["bare"] and words.chance(0.45)
        said.append(clause(words, fact, clauses["bare" if bare else "requests"]))
    if words.chance(0.3):  # in another order than the tool has them
        rng.shuffle(said)
    text = ""
    for index, part in enumerate(said):
        links = (", ", " and ", ", and ", " ") if index else (" ", " ", " ", ", ")
        text += rng.choice(links) + part
    return text


def _action(words: Words, slots: dict[str, str], given: list[Fact]) -> tuple[str, Fact | None]:
    """What is to be done, and the argument that it holds already, if any."""
    rng, clauses = words.rng, load("clauses")
    opening = rng.choice(clauses["openings"])
    for fact in given:
        of_the_noun = fact.form == "string" and fact.field.name.startswith(slots["noun"])
        templates = clauses["directly" if of_the_noun else "adjectives"]
        if (of_the_noun or fact.form == "choice") and words.chance(0.6 if of_the_noun else 0.35):
            inner = slots | {"key": fact.spoken, "value": fact.value.text}
            return opening + expand(rng.choice(templates), rng, inner), fact
    if words.chance(0.25):
        return expand(rng.choice(clauses["questions"]), rng, slots), None
    return opening + expand(rng.choice(clauses["objects"]), rng, slots), None


def _tool_name(words: Words, slots: dict[str, str]) -> str:
    style = words.rng.random()
    for share, name in load("clauses")["tool_names"]:
        if style < share:
            return expand(name, words.rng, slots)
        style -= share
    return slots["verb"]


def _among_others(words: Words, tool: Tool, ask: str) -> list[Tool]:
    """The tool and up to four others, some of which differ from it in a word alone."""
    rng = words.rng
    others = other_tools(words, rng.choice((0, 0, 1, 1, 2, 3)))
    parts = re.findall("[A-Z]?[a-z]+", tool.name)
    if len(parts) > 1 and words.chance(0.4):
        verb, noun = parts[0], parts[-1].lower()
        same_noun = verb in ask.lower() and words.chance(0.5)
        sibling = made_up_tool(words, noun=noun) if same_noun else made_up_tool(words, verb=verb)
        others.append(sibling[0])
    unlike = {other.name: other for other in others if other.name not in (tool.name, parts[0])}
    tools = [*unlike.values(), tool]
    rng.shuffle(tools)
    return tools


def _result(words: Words) -> tuple[str, str]:
    """What a tool returned, and how to say it."""
    shape = words.rng.random()
    if shape < 0.15:
        return words.rng.choice(load("clauses")["successes"]), "Done!"
    if shape < 0.25:
        error = words.value("text").text
        return json.dumps({"error": error}), f"That did not work: {error}."
    if shape < 0.4:
        text = words.value(words.rng.choice(("text", "person", "phrase", "count", "decimal"))).text
        return text, f"The result is {text}."
    taken: set[str] = set()
    parts: dict[str, tuple[str, Any]] = {}
    for _ in range(words.rng.choice((1, 1, 2, 3))):
        fact = make_fact(words, taken)
        taken.add(fact.field.name)
        parts[fact.field.name] = (fact.spoken, fact.value.json)
    said = [f"the {spoken} {_verb(value)}" for spoken, value in parts.values()]
    answer = said[0] if len(said) == 1 else ", ".join(said[:-1]) + f" and {said[-1]}"
    result = json.dumps({key: value for key, (_, value) in parts.items()}, ensure_ascii=False)
    return result, f"{answer[0].upper()}{answer[1:]}."


def _verb(value: Any) -> str:
    if isinstance(value, bool):
        return f"is {'true' if value else 'false'}"
    if isinstance(value, list):
        return f"are {', '.join(value[:-1])} and {value[-1]}"
    return f"is {value}"


def _as_typed(words: Words, ask: str) -> str:
    """People begin a question with a capital or not."""
    return ask[0].upper() + ask[1:] if words.chance(0.6) and not ask[0].isdigit() else ask
