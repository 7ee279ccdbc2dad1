"""Which backend enforces a constraint: the one that was named, or the fastest that can."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache

from octavo.engine.messages import AskedGuide, GuideRequest
from octavo.errors import BadRequestError, ParameterError, UnsupportedConstraint
from octavo.guided.constraint import (
    MOST_CHARS,
    CheckedConstraint,
    checked_constraint,
    schema_of,
)
from octavo.params import GuidedParams, shown
from octavo_registry import PluginHost
from octavo_registry.naming import near_matches
from octavo_registry.structure import Structure, from_plain, plain

AUTO = "auto"
MOST_REMEMBERED = 64


def asked_guide(params: GuidedParams) -> AskedGuide:
    """Write the constraint in JSON types, of a bounded size; what it means is not looked at."""
    name = params.constraint
    value = getattr(params, name)
    with _blaming(params):
        if name == "json":
            value = schema_of(value)
        elif name == "structural_tag":  # what a stranger gave is never taken for ours
            ours = isinstance(value, Structure)
            value = {"structure": plain(value)} if ours else {"tag": value}
        try:
            text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        except (TypeError, ValueError, RecursionError) as error:
            raise ParameterError(f"{name} is not made of JSON types: {error}") from error
        if len(text) > MOST_CHARS:
            raise ParameterError(f"{name} has {len(text)} characters; at most {MOST_CHARS}")
    return AskedGuide(name, text, params.backend)


def read_asked(asked: AskedGuide) -> GuidedParams:
    """The parameters that ``asked_guide`` wrote."""
    value = json.loads(asked.value)
    if asked.name == "structural_tag":
        value = from_plain(value["structure"]) if "structure" in value else value["tag"]
    return GuidedParams(**{asked.name: value}, backend=asked.backend)


def choose_guide(params: GuidedParams, host: PluginHost) -> GuideRequest:
    """Check the constraint and name its backend; raises where none enforces all of it."""
    with _blaming(params):
        checked = checked_constraint(params)
        backend = _backend_for(checked, params.backend or AUTO, host)
    constraint = checked.constraint
    return GuideRequest(
        backend=backend,
        kind=constraint.kind,
        value=json.dumps(constraint.value, ensure_ascii=False, separators=(",", ":")),
    )


def remembering_choice(host: PluginHost) -> Callable[[GuidedParams], GuideRequest]:
    """``choose_guide`` for constraints that come again: understanding one takes milliseconds."""

    @lru_cache(MOST_REMEMBERED)
    def chosen(asked: AskedGuide) -> GuideRequest:
        return choose_guide(read_asked(asked), host)

    def choose(params: GuidedParams) -> GuideRequest:
        with _blaming(params):
            return chosen(asked_guide(params))

    return choose


@contextmanager
def _blaming(params: GuidedParams) -> Iterator[None]:
    """Errors name the field in which the request gave the constraint."""
    try:
        yield
    except BadRequestError as error:
        error.param = params.origin
        raise


def _backend_for(checked: CheckedConstraint, asked: str, host: PluginHost) -> str:
    backends = host.guided_backends
    names = sorted(backends.names(), key=lambda name: backends.info(name).metadata["rank"])
    if asked != AUTO:
        if asked not in names:
            raise ParameterError(
                f"guided backend {shown(asked)} is not registered; {near_matches(asked, names)}"
            )
        names = [asked]
    missing: dict[str, list[str]] = {}
    for name in names:
        lacks = checked.features - set(backends.info(name).metadata["keywords"])
        if not lacks:
            return name
        missing[name] = sorted(lacks)
    if not missing:
        raise UnsupportedConstraint(
            f"{checked.constraint.kind} cannot be enforced: no guided backend is registered; "
            "install a plugin that gives one"
        )
    reasons = "; ".join(f"{name} lacks {', '.join(lacks)}" for name, lacks in missing.items())
    raise UnsupportedConstraint(f"the constraint cannot be enforced: {reasons}")
