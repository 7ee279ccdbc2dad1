"""The corpus of examples/train_tiny: what it holds, and what it must not."""

from __future__ import annotations

import itertools
import json
import operator
import random
import re
from collections.abc import Callable

import pytest
from examples.train_tiny.chat import CALL, END, END_OF_CALL, Chat, Field, Turn, render
from examples.train_tiny.conversation import arithmetic, capital, smalltalk
from examples.train_tiny.corpus import CHATS, Corpus
from examples.train_tiny.extraction import extraction
from examples.train_tiny.fields import Fact
from examples.train_tiny.framing import framing, instruction, list_of
from examples.train_tiny.heldout import capital_cases, cases, held_out_strings
from examples.train_tiny.nonce import made_up, neighbour
from examples.train_tiny.templates import expand, slot_names
from examples.train_tiny.toolcalls import made_up_tool, only_one_fits, tool_call
from examples.train_tiny.words import Value, Words, load

SEEDS = range(3)
SUMS = {"plus": operator.add, "minus": operator.sub, "times": operator.mul}


def sample(count: int, seed: int = 0) -> list[str]:
    documents = Corpus(seed).documents(0)
    return ["".join(piece.text for piece in next(documents)) for _ in range(count)]


def held_out_values() -> set[str]:
    """What a reader of the test would look for, found by another way than the corpus's own."""
    found: set[str] = set()
    for case in cases():
        found.update(field.name for tool in case.tools for field in tool.fields)
        found.update(tool.name for tool in case.tools)
        if case.value is not None:
            found.update(case.value)
            found.update(str(value) for value in case.value.values())
        if case.call is not None:
            found.update(str(value) for value in case.call["arguments"].values())
        if case.kind == "small talk":
            found.add(case.turns[0].content.rstrip(".!?"))
    return found


def allowed(value: str) -> bool:
    """Numbers below 12 and a tool's own choices can't be kept out of a language."""
    data = load("heldout")
    choices = {c for tool in data["tools"].values() for k in tool["takes"].values() for c in k}
    return value in choices or value in map(str, data["values"]["few"]) or value == "True"


@pytest.mark.parametrize(
    "count", [1500, pytest.param(20_000, marks=pytest.mark.slow)], ids=["some", "many"]
)
def test_nothing_of_the_test_is_in_the_corpus(count: int) -> None:
    text = "\n".join(sample(count)).lower()
    searched = [value for value in held_out_values() if not allowed(value)]
    assert len(searched) > 300
    pattern = "|".join(rf"\b{re.escape(value.lower())}\b" for value in searched)
    assert re.findall(pattern, text) == []


def test_the_search_finds_what_is_there() -> None:
    assert "thandiwe" in held_out_strings()
    corpus = Corpus()
    given = render(Chat([Turn("user", "I am Thandiwe."), Turn("assistant", "Hello!")]))
    assert corpus._gives_away(given)


def test_there_are_enough_questions_of_each_kind() -> None:
    questions = cases()
    assert len(questions) == 400
    called = {case.call["name"] for case in questions if case.call is not None}
    arguments = {field.name for c in questions for tool in c.tools for field in tool.fields}
    assert len(called) >= 50
    assert len(arguments) >= 50
    assert len({case.turns[0].content for case in questions}) > 380
    assert len(capital_cases()) == len(load("capitals"))


def test_a_seed_and_a_number_name_the_same_documents() -> None:
    assert sample(50) == sample(50)
    assert sample(50) != sample(50, seed=1)


def test_the_first_batches_are_mostly_copying() -> None:
    documents = Corpus().documents(0, copying=0.9)
    answers = [next(documents) for _ in range(100)]
    copied = [p[1].text.removesuffix(END) in p[0].text for p in answers if len(p) == 2]
    assert sum(copied) > 70


@pytest.mark.parametrize("kind", CHATS, ids=lambda kind: kind.__name__)
def test_a_chat_alternates_and_ends_with_an_answer(kind: Callable[[Words], Chat]) -> None:
    words = Words(random.Random(0))
    for _ in range(100):
        turns = kind(words).turns
        assert turns[-1].role == "assistant"
        assert all(a.role != b.role for a, b in itertools.pairwise(turns))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_call_names_a_tool_of_the_list_and_only_its_arguments(seed: int) -> None:
    words = Words(random.Random(seed))
    for _ in range(200):
        chat = tool_call(words)
        content = chat.turns[1].content
        assert content.startswith(CALL)
        assert content.endswith(END_OF_CALL)
        call = json.loads(content[len(CALL) : -len(END_OF_CALL)])
        (tool,) = [tool for tool in chat.tools if tool.name == call["name"]]
        required = {field.name for field in tool.fields if field.required}
        assert required <= call["arguments"].keys() <= {field.name for field in tool.fields}


@pytest.mark.parametrize("seed", SEEDS)
def test_every_value_that_is_to_be_extracted_stands_in_the_text(seed: int) -> None:
    words = Words(random.Random(seed))
    for _ in range(200):
        chat = extraction(words)
        text = chat.turns[0].content
        for value in json.loads(chat.turns[-1].content).values():
            parts = value if isinstance(value, list) else [value]
            for part in parts:
                known = isinstance(part, (bool, int)) and not isinstance(part, float)
                assert known or str(part) in text


def test_a_request_in_words_at_random_has_the_text_and_one_list_and_says_json() -> None:
    words = Words(random.Random(0))
    lists = ("{fields}", "{shape}", "{schema}")
    for make, texts in ((framing, 1), (instruction, 0)):
        for _ in range(300):
            template = make(words)
            assert template.count("{text}") == texts
            assert sum(template.count(place) for place in lists) == 1
            assert "JSON" in template
            assert not re.search(r"(?i)\b(and|or|with) (\{fields|[\[(<]\{fields)", template)


def test_a_list_names_each_key_once_and_in_order() -> None:
    words = Words(random.Random(0))
    for _ in range(300):
        names = [f"key_{number}" for number in range(words.rng.randint(1, 5))]
        assert re.findall(r"key_\d", list_of(words, names)) == names


def test_made_up_words_are_too_many_to_be_learnt_and_hardly_ever_the_same() -> None:
    rng = random.Random(0)
    drawn = [made_up(rng) for _ in range(5000)]
    assert len(set(drawn)) > 4500
    assert all(re.fullmatch("[a-z]{1,40}", word) for word in drawn)


def test_a_neighbour_begins_or_ends_as_the_word_does() -> None:
    rng = random.Random(0)
    near = [neighbour(rng, "bicycle") for _ in range(200)]
    assert {word.startswith("bic") for word in near} == {True, False}
    assert all(word.startswith("bic") or word.endswith("ycle") for word in near)


def test_a_value_alone_is_said_only_where_one_argument_can_hold_it() -> None:
    first, second, number = (
        Fact(Field(name, type_), name, False, Value(text, text))
        for name, type_, text in (("a", "string", "x"), ("b", "string", "y"), ("n", "integer", "3"))
    )
    facts = [first, second, number]
    assert only_one_fits(number, facts, given=facts, required=[])
    assert not only_one_fits(first, facts, given=facts, required=facts)
    assert only_one_fits(first, facts, given=[first], required=[first])
    assert not only_one_fits(first, facts, given=[first], required=[])


def test_an_argument_that_the_question_leaves_out_is_left_out_of_the_call() -> None:
    words = Words(random.Random(0))
    for _ in range(300):
        tool, ask, arguments = made_up_tool(words)
        for value in arguments.values():
            told = value if isinstance(value, list) else [value]
            assert all(isinstance(v, (bool, int)) or str(v).lower() in ask.lower() for v in told)
        missing = [field for field in tool.fields if field.name not in arguments]
        assert not any(field.required for field in missing)


def test_the_questions_about_tools_ask_only_for_arguments_that_the_tool_has() -> None:
    for tool in load("tools"):
        for ask in tool["asks"]:
            assert slot_names(ask) <= tool["fields"].keys()


def test_sums_and_capitals_are_right() -> None:
    words = Words(random.Random(0))
    for _ in range(200):
        left, _, right = arithmetic(words).turns[1].content.rstrip(".").partition(" is ")
        a, sign, b = left.split()
        assert SUMS[sign](int(a), int(b)) == int(right)
        answer = capital(words).turns[1].content
        assert any(land in answer and city in answer for land, city in load("capitals").items())


def test_a_small_talk_question_leads_to_one_of_its_answers() -> None:
    answers = {answer for intent in load("smalltalk").values() for answer in intent["answer"]}
    words = Words(random.Random(0))
    assert {smalltalk(words).turns[1].content for _ in range(2000)} <= answers


def test_a_template_stands_for_each_of_its_sentences() -> None:
    rng, source = random.Random(0), "(hi|hello)( there|), I am {name} \\(me\\)"
    drawn = {expand(source, rng, {"name": "Ada"}) for _ in range(99)}
    hellos = ("hi", "hi there", "hello", "hello there")
    assert drawn == {f"{hello}, I am Ada (me)" for hello in hellos}


def test_a_template_with_an_open_parenthesis_is_refused() -> None:
    with pytest.raises(ValueError, match="unbalanced"):
        expand("(hi|hello", random.Random(0))
