"""Numbers: what the library reads wrongly is written so that it reads it rightly.

It leaves out decimals with fewer digits than a bound or a multiple has, and reads bounds as floats.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from decimal import ROUND_DOWN, Decimal
from fractions import Fraction
from typing import Any

from octavo.errors import UnsupportedConstraint
from octavo.guided.schema.scalars import Numbers
from octavo.guided.schema.values import exact, written

MOST = 2**53
"""Up to it each whole number is a float; up to 2**63 each multiple of 1024 is."""
MOST_MULTIPLE = 1000
"""Digits without the point as a number: an automaton as large."""
_LOW, _HIGH = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")


def rewritten_numbers(core: Any) -> Any:
    """The core schema, in which such decimals are admitted too, and bounds are within its range.

    Up to 0.95 the library admits 0.95 and 0.89, and not 0.9; of multiples of 0.25 not 1.5.
    """
    if isinstance(core, list):
        return [rewritten_numbers(item) for item in core]
    if not isinstance(core, dict):
        return core
    if core.get("type") == "integer":
        return _of_64_bits(core)
    if core.get("type") == "number":
        core = _of_53_bits(core)
        options = [core, *_with_fewer_places(core)]
        if left_out := sorted(set(_left_out(core))):
            options.append({"enum": left_out})
        return {"anyOf": options} if len(options) > 1 else core
    found = dict(core)
    for key, item in core.items():
        if key in ("properties", "patternProperties", "$defs"):  # by names, which are no keywords
            found[key] = {name: rewritten_numbers(part) for name, part in item.items()}
        elif key not in ("enum", "const"):
            found[key] = rewritten_numbers(item)
    return found


def _of_64_bits(core: dict[str, Any]) -> dict[str, Any]:
    """With bounds that are floats, and narrower where they were none."""
    found = dict(core)
    if abs(low := core.get("minimum", 0)) > MOST:
        found["minimum"] = max(-(-low // 1024) * 1024, 1024 - 2**63)
    if abs(high := core.get("maximum", 0)) > MOST:
        found["maximum"] = 2**63 - 1 if high >= 2**63 - 1 else high // 1024 * 1024
    return _checked(found)


def _of_53_bits(core: dict[str, Any]) -> dict[str, Any]:
    found = dict(core)
    for name, sign in ((_LOW[0], -1), (_LOW[1], -1), (_HIGH[0], 1), (_HIGH[1], 1)):
        if name in core and sign * core[name] > MOST:
            del found[name]
            found[_LOW[0] if sign < 0 else _HIGH[0]] = sign * MOST
    return _checked(found)


def _checked(core: dict[str, Any]) -> dict[str, Any]:
    numbers = _numbers(core)
    low, high = numbers.low, numbers.high
    is_beyond = (low is not None and low > MOST) or (high is not None and high < -MOST)
    is_empty = low is not None and high is not None and low > high
    if is_empty or (is_beyond and core["type"] == "number"):
        raise UnsupportedConstraint("bounds beyond 2**53 cannot be enforced")
    return core


def _with_fewer_places(core: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    numbers = _numbers(core)
    if numbers.multiple is None:
        return
    for places in range(_num_places(core["multipleOf"])):
        coarser = numbers.meet(Numbers(multiple=Fraction(1, 10**places))).multiple
        if coarser is not None and coarser.numerator <= MOST_MULTIPLE:
            yield {**core, "multipleOf": written(coarser)}


def _left_out(core: Mapping[str, Any]) -> Iterator[int | float]:
    bounds = [core[name] for name in (*_LOW, *_HIGH) if name in core]
    numbers = _numbers(core)
    for bound in bounds:
        for places in range(_num_places(bound)):
            cut = Fraction(Decimal(repr(bound)).quantize(Decimal(1).scaleb(-places), ROUND_DOWN))
            if numbers.admits(cut):
                yield written(cut)


def _num_places(number: float) -> int:
    return max(0, -int(Decimal(repr(number)).as_tuple().exponent))


def _numbers(core: Mapping[str, Any]) -> Numbers:
    def bound(names: tuple[str, str]) -> Fraction | None:
        return next((exact(core[name]) for name in names if name in core), None)

    multiple = core.get("multipleOf")
    return Numbers(
        bound(_LOW),
        _LOW[1] in core,
        bound(_HIGH),
        _HIGH[1] in core,
        None if multiple is None else exact(multiple),
    )
