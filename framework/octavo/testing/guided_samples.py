"""What guided backends are checked with: a small vocabulary and constraints with texts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

from octavo.guided.schema import core_schema
from octavo.guided.vocabulary import longest_tokens
from octavo_registry.guided import Constraint, GuideVocabulary
from octavo_registry.structure import (
    Chain,
    Literal,
    OneOf,
    RegexText,
    Repeat,
    Structure,
    TextUntil,
    Triggered,
    plain,
)

CALL = "<|call|>"
"""A special token that ends nothing."""
_SPECIAL = ("<|end|>", "<|stop|>", CALL)
_PIECES = (
    # Some cross the borders of what the constraints are made of, some end inside a character.
    *(
        "yes",
        "ye",
        "es",
        "es, ",
        "no",
        "but",
        'a "',
        '" ',
        "ab",
        "b-",
        "-1",
        "12",
        "=1",
        "1,",
        "2,c",
    ),
    *('{"', '"}', '":', '": ', '","', '",', "[1", "1]", "],", "true", "als", "null", ' "', "},"),
    *(
        "<n>",
        "<n",
        ">1",
        "1</",
        "</n>",
        "n>b",
        "a<",
        "x</n>",
        "free ",
        "日",
        "é",
        "<|",
        "|>",
        "end",
    ),
)
_CUT = ("日".encode()[:2], "本".encode()[1:], "é".encode()[:1] + b"\xa9")
"""The last has the bytes of "é" once more: two tokens of one text."""
STOP_IDS = (0, 1)


def vocabulary() -> GuideVocabulary:
    """Special tokens, one that means nothing, all bytes and some pieces; the logits are wider."""
    pieces = [None] * (len(_SPECIAL) + 1)
    tokens: list[bytes | None] = [*pieces, *(bytes([byte]) for byte in range(256))]
    tokens += [piece.encode() for piece in _PIECES] + list(_CUT)
    return GuideVocabulary(
        token_bytes=tokens,
        special_ids={text: token for token, text in enumerate(_SPECIAL)},
        stop_token_ids=STOP_IDS,
        vocab_size=len(tokens) + 21,
        encode=longest_tokens(tokens),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A constraint, texts that it admits and others; ``admits`` judges any text."""

    constraint: Constraint
    valid: tuple[str, ...]
    invalid: tuple[str, ...]
    admits: Callable[[str], bool]
    features: frozenset[str] = field(default=frozenset())
    """What a backend must list to be asked for it."""

    @property
    def name(self) -> str:
        """Kind and value, cut short."""
        return (
            f"{self.constraint.kind} {json.dumps(self.constraint.value, ensure_ascii=False)[:60]}"
        )


def samples(keywords: Collection[str]) -> list[Sample]:
    """Samples that a backend with such keywords must enforce."""
    every = [_choice(), *_regexes(), *_grammars(), *_structures(), *_schemas()]
    return [each for each in every if {each.constraint.kind, *each.features} <= set(keywords)]


def _choice() -> Sample:
    choices = ["yes", "yes, but", "no", 'a "quoted" one', "日本", "é", "back\\slash\n"]
    return Sample(
        constraint=Constraint(kind="choice", value=choices),
        valid=tuple(choices),
        invalid=("", "ye", "yesno", "No", "日", "yes,", "no ", " no", "back\\\\slash\n"),
        admits=choices.__contains__,
    )


def _of_pattern(constraint: Constraint, pattern: str, *texts: str) -> Sample:
    """Texts are sorted by the pattern, which means what the constraint does."""

    def admits(text: str) -> bool:
        return re.fullmatch(pattern, text, re.DOTALL) is not None

    return Sample(
        constraint=constraint,
        valid=tuple(filter(admits, texts)),
        invalid=tuple(text for text in texts if not admits(text)),
        admits=admits,
    )


def _regexes() -> Iterator[Sample]:
    for pattern, *texts in (
        ("[ab]{2,3}-[0-9]+", "ab-1", "aba-123", "", "a-1", "ab-", "xab-1", "ab-1x"),
        ("é|日本|(yes|no)*", "é", "日本", "yesno", "", "éé", "日", "ye", "yesé"),
    ):
        yield _of_pattern(Constraint(kind="regex", value=pattern), pattern, *texts)


def _grammars() -> Iterator[Sample]:
    pairs = 'start: pair ("," pair)*\npair: /[a-z]+/ "=" DIGIT\nDIGIT: /[0-9]/'
    yield _of_pattern(
        Constraint(kind="grammar", value=pairs),
        "[a-z]+=[0-9](,[a-z]+=[0-9])*",
        *("a=1", "ab=2,c=3", "", "a=", ",a=1", "a=1,", "a =1", "a=12"),
    )
    nested = Constraint(kind="grammar", value='start: "<n>" start? "</n>"')
    yield Sample(
        constraint=nested,
        valid=("<n></n>", "<n><n><n></n></n></n>"),
        invalid=("", "<n>", "<n><n></n>", "<n></n></n>", "<n> </n>"),
        admits=lambda text: text == "<n>" * (len(text) // 7) + "</n>" * (len(text) // 7) != "",
    )


def _structures() -> Iterator[Sample]:
    number = Chain((Literal("<n>"), RegexText("[0-9]"), Literal("</n>")))
    written: tuple[tuple[Structure, str, tuple[str, ...]], ...] = (
        (
            Chain((OneOf((Literal("yes"), Literal('a "'))), Repeat(Literal("é"), 1, 2, ", "))),
            '(yes|a ")é(, é)?',
            ("yesé", 'a "é, é', "", "yes", "yesé, ", "yesé, é, é", "é"),
        ),
        (
            Chain((Literal(CALL), RegexText("[a-z]+"), Literal("="), TextUntil(("</n>",)))),
            r"<\|call\|>[a-z]+=((?!</n>).)*</n>",
            (f"{CALL}ab=x</n>", f"{CALL}a=</</n>", "ab=x</n>", f"{CALL}=</n>", f"{CALL}a=x"),
        ),
        (
            Triggered(("<n>",), (number,), least=1),
            "(((?!<n>).)*<n>[0-9]</n>)+((?!<n>).)*",
            ("<n>1</n>", "free <n>1</n>b<n>2</n>", "", "free", "<n>x</n>", "a<n>1", "<n>1</n><n>"),
        ),
    )
    for structure, pattern, texts in written:
        constraint = Constraint(kind="structure", value=plain(structure))
        features = frozenset({"regex"}) if "RegexText" in repr(structure) else frozenset()
        sample = _of_pattern(constraint, pattern, *texts)
        yield Sample(
            constraint=constraint,
            valid=sample.valid,
            invalid=sample.invalid,
            admits=sample.admits,
            features=features,
        )


_SCHEMAS: tuple[tuple[dict[str, object], tuple[str, ...], tuple[str, ...]], ...] = (
    ({"type": "boolean"}, ("true", "false"), ("", "tru", "null", "truefalse", '"true"')),
    ({"enum": ["yes", 'a "', 12, None]}, ('"yes"', '"a \\""', "12", "null"), ("yes", "1", '"ye"')),
    ({"type": "integer"}, ("0", "-1", "120"), ("", "-", "01", "1.5", '"1"', "1x")),
    ({"type": "string"}, ('""', '"日本 é"', '"\\n"'), ('"', "yes", '"a"b"', '"\n"')),
    ({"type": "string", "maxLength": 2}, ('""', '"日本"', '"\\n1"'), ('"123"', '"')),
    ({"type": "integer", "minimum": 1, "maximum": 12}, ("1", "12"), ("0", "13", "-1", "120")),
    (
        {"type": "array", "items": {"type": "integer"}, "minItems": 1},
        ("[1]", "[1,12]"),
        ("[]", "[1", "[1,]", "[true]", "1"),
    ),
    (
        {
            "type": "object",
            "properties": {"yes": {"type": "boolean"}, "no": {"type": "null"}},
            "required": ["yes"],
            "additionalProperties": False,
        },
        ('{"yes":true}', '{"yes":false,"no":null}'),
        ("{}", '{"no":null}', '{"yes":1}', '{"yes":true', '{"yes":true,"a":1}'),
    ),
)


def _schemas() -> Iterator[Sample]:
    for schema, valid, invalid in _SCHEMAS:
        core = core_schema(schema)
        yield Sample(
            constraint=Constraint(kind="json", value=core.schema),
            valid=valid,
            invalid=invalid,
            admits=_is_json,
            features=core.features,
        )


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
