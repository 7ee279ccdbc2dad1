"""The llguidance backend: each part of a structure, choices, patterns, and three vocabularies."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

import sample_tokenizers
from octavo import GuidedParams
from octavo.errors import ModelError, UnsupportedConstraint
from octavo.guided.choose import choose_guide
from octavo.guided.vocabulary import longest_tokens, read_vocabulary
from octavo.testing.guided_samples import CALL, vocabulary
from octavo_plugins.guided.llguidance import backend
from octavo_plugins.guided.llguidance.backend import Backend
from octavo_registry import PluginHost
from octavo_registry.guided import Constraint, GuideVocabulary
from octavo_registry.structure import (
    Chain,
    JsonText,
    Literal,
    OneOf,
    RegexText,
    Repeat,
    TextUntil,
    Triggered,
    plain,
)

WORDS = vocabulary()
BACKEND = Backend(WORDS)
FIRST_BYTE = WORDS.token_bytes.index(b"\0")
NUMBER = Chain((Literal("<n>"), RegexText("[0-9]"), Literal("</n>")))
WORD = Chain((Literal("<n"), Literal("o>"), RegexText("[a-z]+"), Literal("</no>")))


def spellings(text: str) -> list[list[int]]:
    """Few tokens, which cross borders, and one a byte; special tokens where their text is."""
    found = []
    for encode in (WORDS.encode, lambda piece: [FIRST_BYTE + byte for byte in piece.encode()]):
        pieces = re.split(f"({re.escape(CALL)})", text)
        found.append(
            [
                token
                for piece in pieces
                for token in ([WORDS.special_ids[CALL]] if piece == CALL else encode(piece))
            ]
        )
    return found


def admits(kind: str, value, text: str) -> bool:
    guide = BACKEND.compile(Constraint(kind=kind, value=value))
    results = []
    for tokens in spellings(text):
        state = guide.start()
        results.append(all(map(state.accept, tokens)) and state.is_complete())
    assert results[0] == results[1], text
    return results[0]


STRUCTURES = {
    "a literal": (Literal('a "q" \\ \n é'), ['a "q" \\ \n é'], ["", "a", 'a "q" \\ \n é ']),
    "a special token": (
        Literal(f"a{CALL}b{CALL}"),
        [f"a{CALL}b{CALL}"],
        ["ab", f"a{CALL}b", f"{CALL}b{CALL}"],
    ),
    "JSON": (
        Chain((JsonText({"type": "boolean"}), Literal(";"))),
        ["true;", "false;"],
        ["true", "1;", ";"],
    ),
    "nothing is JSON": (OneOf((Literal("x"), JsonText(True))), ["x", "[1]", '"x"'], ["y", "[1"]),
    "a pattern": (RegexText("a/b|[é/]+"), ["a/b", "é/", "/"], ["", "a", "a/"]),
    "any text": (TextUntil(), ["", "a\nb", "日本"], [f"a{CALL}"]),
    "text up to an end": (TextUntil(("</n>",)), ["</n>", "a\n</</n>"], ["", "a", "</n>x"]),
    "text up to one of several ends": (
        TextUntil((".", "!?")),
        ["a.", "!?", "a!!?"],
        ["a", "a!", "a.b.", "!?."],
    ),
    "text up to a special token": (
        TextUntil((CALL,)),
        [CALL, f"a\n{CALL}"],
        ["", "a", f"{CALL}a"],
    ),
    "text up to a text or a special token": (
        TextUntil((CALL, "!")),
        [CALL, "!", f"a{CALL}", "a!"],
        ["a", f"a!{CALL}", f"{CALL}!"],
    ),
    "an empty chain": (Chain(()), [""], ["a"]),
    "one of several": (
        OneOf((Literal("yes"), Literal("yes, but"), RegexText("[0-9]"))),
        ["yes", "yes, but", "7"],
        ["", "yes,", "77", "yes7"],
    ),
    "any number": (Repeat(Literal("ab")), ["", "ab", "ababab"], ["a", "aba"]),
    "at most": (Repeat(Literal("ab"), most=2), ["", "ab", "abab"], ["ababab"]),
    "at least": (Repeat(Literal("ab"), 2), ["abab", "ababab"], ["", "ab"]),
    "with separators": (
        Repeat(RegexText("[a-z]"), 0, None, ", "),
        ["", "a", "a, b", "a, b, c"],
        ["a, ", ", a", "ab", "a,b"],
    ),
    "a bounded number with separators": (
        Repeat(RegexText("[a-z]"), 2, 3, CALL),
        [f"a{CALL}b", f"a{CALL}b{CALL}c"],
        ["", "a", f"a{CALL}", f"a{CALL}b{CALL}c{CALL}d"],
    ),
    "at most one with separators": (Repeat(Literal("a"), 0, 1, ","), ["", "a"], ["a,", "a,a"]),
    "exactly one with separators": (Repeat(Literal("a"), 1, 1, ","), ["a"], ["", "a,a"]),
    "triggers with a slash": (
        Triggered(("a//b", "</a"), (Chain((Literal("a//b["), RegexText("[0-9]"), Literal("]"))),)),
        ["x", "xa//b[1]y", "a/b[z]"],
        ["a//b[z]", "a//b", "a//b[z]ab[1]"],
    ),
    "a trigger": (
        Triggered(("<n>",), (NUMBER,)),
        ["", "a <n", "<n>1</n>", "a<n>1</n>b<n>2</n>\n"],
        ["<n>", "a<n>x</n>", "<n>1</n><n>"],
    ),
    "a trigger of two lines": (
        Triggered(("a\nb",), (Chain((Literal("a\nb"), RegexText("[0-9]"))),)),
        ["", "xa\nb1", "a\nc"],
        ["a\nb", "a\nbx"],
    ),
    "a trigger that must come": (
        Triggered(("<n>",), (NUMBER,), least=1),
        ["<n>1</n>", "a<n>1</n>b", "<n>1</n><n>2</n>"],
        ["", "a", "<n>"],
    ),
    "a trigger that may come once": (
        Triggered(("<n>",), (NUMBER,), most=1),
        ["", "a", "a<n>1</n>b", "<n>1</n><n"],
        ["<n>1</n>a<n>2</n>"],
    ),
    "several triggers": (
        Triggered(("<n>", "<no>"), (NUMBER, WORD)),
        ["", "a<n>1</n>", "<no>a</no><n>1</n>", "<nn"],
        ["<no>", "<n>a</n>", "a<n>1</n><no>1</no>", "<no>a</n>"],
    ),
    "a trigger of several parts": (
        Triggered(("<n",), (NUMBER, WORD)),
        ["a", "<n>1</n><no>a</no>"],
        ["<n", "<nx", "<n>a</n>"],
    ),
    "a special token as trigger": (
        Triggered((CALL,), (Chain((Literal(CALL), RegexText("[0-9]"))),)),
        ["", "a", f"a{CALL}1", f"{CALL}1b{CALL}2"],
        [CALL, f"{CALL}a", f"a{CALL}1{CALL}"],
    ),
    "a text and a special token as triggers": (
        Triggered(("<n>", CALL), (NUMBER, Chain((Literal(CALL), Literal("a")))), least=1),
        ["<n>1</n>", f"x{CALL}a", f"{CALL}a<n>1</n>x"],
        ["", "x", f"{CALL}<n>1</n>", f"<n>{CALL}a"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", STRUCTURES)
def test_a_structure_admits_its_texts_and_no_others(name) -> None:
    part, valid, invalid = STRUCTURES[name]
    value = plain(part)
    assert [text for text in valid if not admits("structure", value, text)] == []
    assert [text for text in invalid if admits("structure", value, text)] == []


def test_a_special_token_is_no_text_and_its_text_is_no_special_token() -> None:
    special = WORDS.special_ids[CALL]
    state = BACKEND.compile(Constraint(kind="structure", value=plain(Literal(CALL)))).start()
    assert not state.accept(FIRST_BYTE + ord("<"))
    assert state.accept(special)
    state = BACKEND.compile(Constraint(kind="regex", value=re.escape(CALL))).start()
    assert not state.accept(special)
    assert all(state.accept(FIRST_BYTE + byte) for byte in CALL.encode())


def test_choices_are_what_they_are_character_for_character() -> None:
    choices = ['a "q"', "back\\slash", "line\nbreak", "tab\t", "日本語", "é", "e\u0301", "<|end|>"]
    for choice in choices:
        assert admits("choice", choices, choice)
    for text in ("", "a", 'a "q', "back\\\\slash", "line\\nbreak", "日本", "e", "É"):
        assert not admits("choice", choices, text)


@pytest.mark.parametrize(
    ("pattern", "valid", "invalid"),
    [
        ("b", ["b"], ["ab", "bc", ""]),
        ("a|bc", ["a", "bc"], ["ac", "abc"]),
        ("(?i:yes)", ["yes", "YES"], ["ye"]),
        (".+", ["a", "é"], ["", "a\n"]),
        (r"\d{2,3}/\w", ["12/a", "123/é"], ["1/a", "1234/a"]),
    ],
)
def test_a_pattern_matches_from_end_to_end(pattern, valid, invalid) -> None:
    assert [text for text in valid if not admits("regex", pattern, text)] == []
    assert [text for text in invalid if admits("regex", pattern, text)] == []


@pytest.mark.parametrize(
    ("kind", "value"), [("regex", "(?=a)a"), ("regex", r"(a)\1"), ("grammar", "start: nothing")]
)
def test_what_it_does_not_know_is_refused_in_its_name(kind, value) -> None:
    with pytest.raises((UnsupportedConstraint, ValueError)):
        BACKEND.compile(Constraint(kind=kind, value=value))


def of_tokenizer(kind: str):
    hf = sample_tokenizers.load(kind).hf
    # Wider than the vocabulary, as logits are that are padded to a round number.
    return hf, read_vocabulary(hf, vocab_size=len(hf) + 70, stop_token_ids=[hf.eos_token_id])


@pytest.mark.parametrize("kind", ["byte_level", "sentencepiece"])
def test_texts_pass_in_the_tokens_of_a_tokenizer(kind) -> None:
    hf, words = of_tokenizer(kind)
    backend = Backend(words)
    for text in ("the quick brown fox", "日本語 😀 café\n", "{'lazy': fox}\t<tool_call>x"):
        state = backend.compile(Constraint(kind="choice", value=[text])).start()
        tokens = longest_tokens(words.token_bytes)(text)
        assert all(map(state.accept, tokens)), text
        assert state.is_finished()
        row = np.zeros((words.vocab_size + 31) // 32, np.int32)
        state.fill_bitmask(row)
        bits = np.unpackbits(row.view(np.uint8), bitorder="little")
        assert np.flatnonzero(bits).tolist() == [hf.eos_token_id]


@pytest.mark.parametrize("kind", ["byte_level", "sentencepiece"])
def test_what_is_forced_spells_the_text(kind) -> None:
    _, words = of_tokenizer(kind)
    state = Backend(words).compile(Constraint(kind="choice", value=["fox: café 日本 😀"])).start()
    tokens: list[int] = []
    row = np.zeros((words.vocab_size + 31) // 32, np.int32)
    while not state.is_finished():
        forced = state.forced()
        if not forced:
            state.fill_bitmask(row)
            bits = np.unpackbits(row.view(np.uint8), bitorder="little")
            forced = [int(bits.argmax())]
        assert all(map(state.accept, forced))
        tokens += forced
    joined = b"".join(words.token_bytes[token] or b"" for token in tokens)
    assert joined.decode() == "fox: café 日本 😀"


def test_bytes_of_a_character_are_tokens_of_their_own_where_it_has_none() -> None:
    _, words = of_tokenizer("sentencepiece")
    first = words.token_bytes.index("😀".encode()[:1])
    state = Backend(words).compile(Constraint(kind="regex", value="😀|日")).start()
    assert state.accept(first)
    assert not state.is_complete()
    assert not state.accept(first)


def test_a_vocabulary_of_words_is_refused_by_name() -> None:
    with pytest.raises(ModelError, match="spelled neither as bytes nor as SentencePiece does"):
        of_tokenizer("wordpiece")


@pytest.mark.parametrize("kind", ["byte_level", "sentencepiece"])
@pytest.mark.parametrize("text", ["fox", " fox", "fox: <s></s> 日本", "\n\nthe", "<tool_call>a"])
def test_a_text_is_encoded_as_it_stands_inside_another(kind, text) -> None:
    _, words = of_tokenizer(kind)
    tokens = words.encode(text)
    assert b"".join(words.token_bytes[token] or b"" for token in tokens) == text.encode()


def test_bounds_of_which_it_would_let_the_excluded_one_pass_are_for_other_backends() -> None:
    host = PluginHost.discover()
    for bounds, is_its_own in (
        ({"exclusiveMinimum": 0, "maximum": 0.5}, False),
        ({"minimum": -0.5, "exclusiveMaximum": 0}, False),
        ({"exclusiveMinimum": 0, "maximum": 1}, True),
        ({"minimum": 0, "maximum": 0.5}, True),
        ({"exclusiveMinimum": 0.5, "exclusiveMaximum": 0.75}, True),
    ):
        request = choose_guide(GuidedParams(json={"type": "number", **bounds}), host)
        assert (request.backend == "llguidance") == is_its_own


@pytest.mark.parametrize(
    ("bounds", "kept", "beyond"),
    [
        ({"maximum": 2**64 - 1}, 2**63 - 1, 2**64),
        ({"minimum": -(2**63), "maximum": 2**63 - 1}, 5, 2**63),
        ({"minimum": 2**53 + 1, "maximum": 2**53 + 9999}, 2**53 + 1024, 2**53),
    ],
)
def test_bounds_of_many_digits_are_for_others_and_narrower_in_structures(
    bounds, kept, beyond
) -> None:
    schema, host = {"type": "integer", **bounds}, PluginHost.discover()
    assert choose_guide(GuidedParams(json=schema), host).backend != "llguidance"
    request = choose_guide(GuidedParams(structural_tag=JsonText(schema)), host)
    assert request.backend == "llguidance"
    assert admits("structure", json.loads(request.value), str(kept))
    assert not admits("structure", json.loads(request.value), str(beyond))


def test_a_vocabulary_without_an_end_is_refused_by_name() -> None:
    words = GuideVocabulary(
        token_bytes=[b"a"], special_ids={}, stop_token_ids=(), vocab_size=1, encode=lambda _: [0]
    )
    with pytest.raises(UnsupportedConstraint, match="llguidance needs a token that ends a text"):
        Backend(words)


@pytest.mark.parametrize("limit", ["max_tokens=10", 'stop="!"'])
def test_tokens_are_taken_back_where_the_library_cannot(limit: str) -> None:
    grammar = f"%llguidance {{}}\nstart: a\na[capture, {limit}]: /[a-z]*/\n"
    state = BACKEND.compile(Constraint(kind="grammar", value=grammar)).start()
    first, *rest = (FIRST_BYTE + byte for byte in b"abcd")
    assert state.accept(first)
    masks = [bitmask(state)]
    assert all(map(state.accept, rest))
    state.rollback(len(rest))
    masks.append(bitmask(state))
    assert np.array_equal(*masks)
    assert all(map(state.accept, rest))
    with pytest.raises(ValueError, match="not taken so many"):
        state.rollback(5)


def bitmask(state: backend.State) -> np.ndarray:
    row = np.zeros((WORDS.vocab_size + 31) // 32, np.int32)
    state.fill_bitmask(row)
    return row
