"""Numbers mean the same to all backends: how constants are written, and what bounds admit."""

from __future__ import annotations

import json
import operator
import random
from decimal import Decimal
from functools import cache

import pytest

from octavo import GuidedParams
from octavo.errors import UnsupportedConstraint
from octavo.guided.byte_automaton import automaton_guide
from octavo.guided.choose import choose_guide
from octavo.guided.schema import core_schema
from octavo.guided.schema.number_text import numbers
from octavo.guided.schema.regex import matches
from octavo_plugins.guided.llguidance.keywords import KEYWORDS
from octavo_registry import PluginHost
from octavo_registry.guided import Constraint, Guide, GuideVocabulary

WORDS = GuideVocabulary(
    token_bytes=[*(bytes([byte]) for byte in range(256)), None],
    special_ids={"<end>": 256},
    stop_token_ids=(256,),
    vocab_size=257,
    encode=lambda text: list(text.encode()),
)
BACKENDS = ["automaton", "llguidance", "lm_format_enforcer", "outlines", "xgrammar"]
HOLDS = {
    "minimum": operator.ge,
    "exclusiveMinimum": operator.gt,
    "maximum": operator.le,
    "exclusiveMaximum": operator.lt,
}
BEYOND_LLGUIDANCE = ([1e300], [2**60 + 1], [2**63], [-(2**63)])
"""Other digits, and of the last none: its library ends the process."""


@cache
def host() -> PluginHost:
    return PluginHost.discover()


@cache
def backend(name: str):
    return host().guided_backends.load(name)(WORDS)


def guide_of(name: str, schema: object) -> Guide:
    request = choose_guide(GuidedParams(json=schema, backend=name), host())
    if request.automaton:
        return automaton_guide(request.automaton, WORDS)
    constraint = Constraint(kind=request.kind, value=json.loads(request.value))
    return backend(name).compile(constraint)


def accepts(guide: Guide, text: str) -> bool:
    state = guide.start()
    return all(map(state.accept, text.encode())) and state.is_complete()


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize(
    ("constants", "written"),
    [
        ([-2.0], {"-2"}),
        ([-2], {"-2"}),
        ([2, 2.0], {"2"}),
        ([-0.0], {"0"}),
        ([1e-7, 0.5], {"0.0000001", "0.5"}),
        ([1e20], {"1" + "0" * 20}),
        ([1e300], {"1" + "0" * 300}),
        ([2**60 + 1], {str(2**60 + 1)}),
        ([2**63], {str(2**63)}),
        ([-(2**63)], {str(-(2**63))}),
        ([-(2.0**63)], {"-9223372036854776000"}),
        ([0.1 + 0.2, True], {"0.30000000000000004", "true"}),
    ],
)
def test_a_constant_is_written_in_the_same_one_way_by_all(name, constants, written) -> None:
    if name == "llguidance" and constants in BEYOND_LLGUIDANCE:
        with pytest.raises(UnsupportedConstraint, match="llguidance lacks enum:large"):
            guide_of(name, {"enum": constants})
        return
    guide = guide_of(name, {"enum": constants})
    tried = {form for each in constants for form in (repr(each), f"{each}.0", f"{each}0", "1")}
    tried |= {str(2**60), "-2.0", "1e300", "1e-7", "-0", "true", *written}
    assert {text for text in tried if accepts(guide, text)} == written


def decimals_near(bounds: list[Decimal], chance: random.Random) -> set[Decimal]:
    found = {
        Decimal(chance.randrange(-(10**6), 10**6)).scaleb(-chance.randrange(6)) for _ in "12345"
    }
    for bound in bounds:
        for places in range(6):
            step = Decimal(1).scaleb(-places)
            cut = bound.quantize(step, "ROUND_DOWN")
            found |= {bound, cut - step, cut, cut + step}
    return found


@pytest.mark.parametrize("seed", range(60))
def test_decimals_near_bounds_pass_where_they_are_within_them(seed) -> None:
    chance = random.Random(seed)
    places = chance.choice([0, 1, 2, 3, 5])
    values = [
        Decimal(chance.choice([1, -1]) * chance.randrange(10 ** chance.randrange(1, places + 3)))
        for _ in range(2)
    ]
    low, high = (value.scaleb(-places) for value in sorted(values))
    names = [chance.choice(list(HOLDS)[:2]), chance.choice(list(HOLDS)[2:])]
    bounds = dict(zip(names, (low, high), strict=True))
    if low == high or chance.random() < 0.5:
        del bounds[chance.choice(names)]
    schema = {"type": "number", **{name: float(bound) for name, bound in bounds.items()}}
    texts = numbers(schema)
    is_its_own = core_schema(schema).features <= set(KEYWORDS)
    guide = guide_of("llguidance" if is_its_own else "automaton", schema)
    for value in decimals_near([low, high], chance):
        text = (
            f"{value.normalize():f}".replace("-0", "0") if not value else f"{value.normalize():f}"
        )
        right = all(HOLDS[name](value, bound) for name, bound in bounds.items())
        assert matches(texts, text) == right, (schema, text)
        assert accepts(guide, text) == right, (schema, text)


@pytest.mark.parametrize("name", ["automaton", "llguidance"])
@pytest.mark.parametrize(
    ("bounds", "wrong", "right"),
    [
        ({"exclusiveMaximum": 2**63 - 1}, str(2**63 - 1), str(2**63 - 2)),
        ({"exclusiveMaximum": 5e18}, str(5 * 10**18), str(5 * 10**18 - 1)),
        ({"exclusiveMinimum": -(2**63) - 1}, str(-(2**63) - 1), str(-(2**63))),
    ],
)
def test_a_bound_stays_open_where_the_multiple_next_to_it_is_no_float(
    name, bounds, wrong, right
) -> None:
    schema = {"type": "number", "multipleOf": 0.25, **bounds}
    try:
        guide = guide_of(name, schema)
    except UnsupportedConstraint:
        assert name == "llguidance"
        return
    assert not accepts(guide, wrong)
    assert accepts(guide, right)


@pytest.mark.parametrize("bounds", [{"minimum": 2**53 + 1}, {"maximum": -(2**53) - 1}])
def test_what_lies_beyond_the_floats_of_llguidance_is_refused_within_structures_too(bounds) -> None:
    constraint = Constraint(kind="json", value={"type": "number", **bounds})
    with pytest.raises(UnsupportedConstraint, match="beyond"):
        backend("llguidance").compile(constraint)
