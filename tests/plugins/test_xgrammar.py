"""The backend on xgrammar: what its allow-list claims, and texts written in its grammar."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from jsonschema import validate

import sample_tokenizers
from guided_features import CASES
from octavo import LLM, GuidedParams, SamplingParams
from octavo.errors import UnsupportedConstraint
from octavo.guided.schema import FEATURES, core_schema
from octavo.guided.vocabulary import longest_tokens, read_vocabulary
from octavo_plugins.guided import xgrammar
from octavo_plugins.guided.xgrammar import grammar
from octavo_plugins.guided.xgrammar.backend import Backend
from octavo_plugins.guided.xgrammar.keywords import KEYWORDS
from octavo_registry import PluginHost
from octavo_registry.guided import Constraint, GuideVocabulary

KINDS = {"json", "regex", "choice"}
LISTED = [case for case in CASES if core_schema(case.schema).features <= set(KEYWORDS)]
REFUSED = [
    case
    for case in LISTED
    if case.schema.get("additionalProperties", False) is not False
    and not all(json.dumps(name) == f'"{name}"' for name in case.schema.get("properties", ()))
]
"""Names that have escapes, or are not of ASCII, cannot be told from others."""
TRIED = [case for case in LISTED if case not in REFUSED]
BYTES = GuideVocabulary(
    token_bytes=[*(bytes([byte]) for byte in range(256)), None],
    special_ids={"<end>": 256},
    stop_token_ids=(256,),
    vocab_size=257,
    encode=lambda text: list(text.encode()),
)
BACKEND = Backend(BYTES)


def admits(kind: str, value, text: str) -> bool:
    state = BACKEND.compile(Constraint(kind=kind, value=value)).start()
    return all(map(state.accept, text.encode())) and state.is_complete()


def test_it_is_registered_only_where_the_library_is_installed(monkeypatch) -> None:
    def names() -> list[str]:
        host = PluginHost()
        host.register(xgrammar)
        return list(host.guided_backends.names())

    assert names() == ["xgrammar"]
    monkeypatch.setattr(xgrammar, "find_spec", lambda name: None)
    assert names() == []


def test_the_allow_list_names_features_that_there_are_and_that_are_tried() -> None:
    features = set(KEYWORDS) - KINDS
    assert set(KEYWORDS) >= KINDS
    assert features <= set(FEATURES)
    assert features <= {case.feature for case in TRIED}


@pytest.mark.parametrize("case", TRIED, ids=lambda case: case.name)
def test_what_a_feature_admits_is_accepted_and_nothing_else(case) -> None:
    assert [text for text in case.valid if not admits("json", case.schema, text)] == []
    assert [text for text in case.invalid if admits("json", case.schema, text)] == []


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.name)
def test_what_it_would_get_wrong_is_refused_in_its_name(case) -> None:
    with pytest.raises(UnsupportedConstraint, match="xgrammar: 'additionalProperties' beside"):
        BACKEND.compile(Constraint(kind="json", value=case.schema))


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        ('{"a": 1, "b": [2, 3]}', True),
        ('{\n  "a": 1,\n  "b": [\n    2\n  ]\n}', True),
        ('{\r\n\t"a":1\r\n}', True),
        ('{  "a": 1}', False),
        ('{"a": \t1}', False),
        ('{\n\n"a": 1}', False),
    ],
)
def test_blanks_stand_as_documents_are_written_and_do_not_go_on(text, valid) -> None:
    assert admits("json", {"type": "object", "additionalProperties": True}, text) is valid


def test_texts_of_a_schema_that_look_like_rules_stay_what_they_are() -> None:
    rule = 'root ::= "x"\nbasic_escape ::= (("a"))\nwhitespace ::= " "\np ::= Regex("^p0$")'
    schema = {
        "type": "object",
        "properties": {rule: {"const": rule}, "p": {"type": "string", "pattern": "^[ab]$"}},
        "required": [rule, "p"],
        "additionalProperties": False,
    }
    assert admits("json", schema, json.dumps({rule: rule, "p": "a"}))
    assert not admits("json", schema, json.dumps({rule: "x", "p": "a"}))
    assert not admits("json", schema, json.dumps({rule: rule, "p": "p0"}))


@pytest.mark.parametrize("name", ["const", "enum", "properties", "type", "$defs", "anyOf"])
def test_a_property_may_have_the_name_of_a_keyword(name) -> None:
    schema = {
        "type": "object",
        "properties": {name: {"type": "string", "maxLength": 1}, "pattern": {"type": "null"}},
        "required": [name],
        "additionalProperties": False,
    }
    assert admits("json", schema, json.dumps({name: "\n", "pattern": None}))
    assert not admits("json", schema, json.dumps({name: "aa"}))
    assert not admits("json", schema, f'{{"{name}":"\t"}}')


@pytest.mark.parametrize(
    ("pattern", "valid", "invalid"),
    [
        ("b", ["b"], ["ab", "bc", ""]),
        ("a|bc", ["a", "bc"], ["ac", "abc"]),
        ("[^a]", ["b", '"', "\n", "\\", "漢", "😀"], ["a", "", "bb"]),
        (".+", ["a", "é"], ["", "a\n"]),
        (r"\d{2,3}/\w", ["12/a", "123/_"], ["1/a", "1234/a"]),
        (r'"(\\.|[^"\\])*"', ['"a"', '"\\""'], ['"', '"a""']),
        ("(ab?){2}(c{2,})?", ["aab", "abacc"], ["a", "aac"]),
    ],
)
def test_a_pattern_matches_from_end_to_end(pattern, valid, invalid) -> None:
    assert [text for text in valid if not admits("regex", pattern, text)] == []
    assert [text for text in invalid if admits("regex", pattern, text)] == []


def test_choices_are_what_they_are_character_for_character() -> None:
    choices = ['a "q"', "back\\slash", "line\nbreak", "tab\t", "日本語", "e\u0301", "[a]", "😀"]
    assert all(admits("choice", choices, choice) for choice in choices)
    for text in ("", "a", 'a "q', "back\\\\slash", "line\\nbreak", "日本", "é", "\\U0001F600"):
        assert not admits("choice", choices, text)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("regex", "(?=a)a"),
        ("regex", r"(a)\1"),
        ("regex", r"\bA"),
        ("regex", "(?i:a)"),
        ("regex", f"a{{0,{grammar.MOST_TIMES + 1}}}"),
        ("json", {"type": "array", "items": True, "maxItems": 10**6}),
        ("json", {"type": "string", "maxLength": 10**6}),
        ("json", {"type": "string", "pattern": "^\\x01$"}),
        ("json", {"type": "string", "pattern": "x", "minLength": 500}),
    ],
)
def test_what_it_cannot_say_is_refused_in_its_name(kind, value) -> None:
    with pytest.raises(UnsupportedConstraint, match="xgrammar"):
        BACKEND.compile(Constraint(kind=kind, value=value))


def test_the_most_repetitions_are_counted() -> None:
    most = grammar.MOST_TIMES
    assert admits("regex", f"a{{0,{most}}}", "a" * most)
    assert not admits("regex", f"a{{0,{most}}}", "a" * (most + 1))


@pytest.mark.parametrize("schema", [{"type": "string"}, {"type": "object"}, True])
def test_bytes_that_are_no_utf8_are_in_no_string(schema) -> None:
    guide = BACKEND.compile(Constraint(kind="json", value=core_schema(schema).schema))
    form = b'"%s"' if schema == {"type": "string"} else b'{"a%s":"%s"}'
    for text, valid in (
        (b"\xed\x9f\xbf\xee\x80\x80\xf0\x9f\x98\x80", True),
        (b"\xed\xa0\x80", False),
        (b"\xed\xbf\xbf", False),
    ):
        for place in range(form.count(b"%")):
            parts = [b"", b""]
            parts[place] = text
            state = guide.start()
            taken = all(map(state.accept, form % tuple(parts[: form.count(b"%")])))
            assert (taken and state.is_complete()) == valid


@pytest.mark.parametrize(
    ("name", "other"),
    [("_ESCAPE_RULE", re.compile("^another_name ::= .*$")), ("_ANY_CHARACTER", "[another class")],
)
def test_a_grammar_of_the_library_that_is_not_of_the_known_form_is_refused(
    monkeypatch, name, other
) -> None:
    monkeypatch.setattr(grammar, name, other)
    with pytest.raises(UnsupportedConstraint, match="not of the known form"):
        BACKEND.compile(Constraint(kind="json", value={"type": "string"}))


@pytest.mark.parametrize("kind", ["byte_level", "sentencepiece"])
def test_texts_pass_in_the_tokens_of_a_tokenizer_and_only_its_tokens_are_allowed(kind) -> None:
    hf = sample_tokenizers.load(kind).hf
    # Wider than the vocabulary, as logits are that are padded to a round number.
    words = read_vocabulary(hf, vocab_size=len(hf) + 70, stop_token_ids=[hf.eos_token_id])
    backend = Backend(words)
    row = np.zeros((words.vocab_size + 31) // 32, np.int32)
    for text in ("the quick brown fox", "日本語 😀 café\n", "{'lazy': fox}\t<tool_call>x"):
        state = backend.compile(Constraint(kind="choice", value=[text])).start()
        assert all(map(state.accept, longest_tokens(words.token_bytes)(text))), text
        assert state.is_finished()
        state.fill_bitmask(row)
        bits = np.unpackbits(row.view(np.uint8), bitorder="little")
        assert np.flatnonzero(bits).tolist() == [hf.eos_token_id]
    backend.compile(Constraint(kind="regex", value=r"[\s\S]*")).start().fill_bitmask(row)
    found = set(np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist())
    texts = {token for token, each in enumerate(words.token_bytes) if each}
    assert found <= texts | {hf.eos_token_id}


@pytest.mark.slow
def test_a_model_answers_in_the_form_that_this_backend_holds_it_to() -> None:
    schema = {
        "type": "object",
        "properties": {
            "city": {"type": "string", "maxLength": 12},
            "post": {"type": "string", "pattern": "^[0-9]{5}$"},
            "people": {"type": "integer", "minimum": 1, "maximum": 99},
        },
        "required": ["city", "post", "people"],
        "additionalProperties": False,
    }
    guided = GuidedParams(json=schema, backend="xgrammar")
    with LLM("octavo/tiny", dtype="float32") as llm:
        params = SamplingParams(guided=guided, seed=1, max_tokens=200)
        (output,) = llm.generate("Paris: ", params, use_tqdm=False)
    assert output.guided.backend == "xgrammar"
    assert output.outputs[0].finish_reason == "stop"
    validate(json.loads(output.outputs[0].text), schema)
