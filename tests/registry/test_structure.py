"""Structures cross to the engine as JSON and come back as they were."""

from __future__ import annotations

import json

from octavo_registry.structure import (
    Chain,
    JsonText,
    Literal,
    OneOf,
    RegexText,
    Repeat,
    TextUntil,
    Triggered,
    from_plain,
    plain,
)


def test_a_structure_of_all_parts_is_the_same_after_json() -> None:
    call = Chain((Literal("<f>"), JsonText({"kind": "Literal", "part": [1]}), Literal("</f>")))
    whole = OneOf(
        (
            Repeat(call, least=1, most=3, separator=","),
            Triggered(("<f>",), (call,), most=1),
            Chain((TextUntil(("a", "b")), RegexText("a+"), JsonText(True))),
        )
    )
    assert from_plain(json.loads(json.dumps(plain(whole)))) == whole
