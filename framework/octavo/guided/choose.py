"""Which backend enforces a constraint: the one that was named, or the fastest that can."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import TypeVar, cast

from msgspec import structs

from octavo.errors import BadRequestError, ParameterError, UnsupportedConstraint
from octavo.guided.constraint import (
    MOST_CHARS,
    CheckedConstraint,
    checked_constraint,
    schema_of,
)
from octavo.messages import AskedGuide, GuideRequest
from octavo.params import GuidedParams
from octavo.vllm_names import GUIDED_BACKENDS
from octavo.wording import shown
from octavo_registry import PluginHost
from octavo_registry.guided import AutomatonBackend, Constraint
from octavo_registry.lazy import former_members
from octavo_registry.naming import close_or_known
from octavo_registry.structure import Structure, from_plain, plain

AUTO = "auto"
MOST_REMEMBERED = 64
_Guide = TypeVar("_Guide")


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


def choose_guide(
    params: GuidedParams, host: PluginHost, *, on_device: bool = False
) -> GuideRequest:
    """Check the constraint and name its backend; raises where none enforces all of it.

    With ``on_device`` the engine's device can walk automata, and backends that make them may be
    chosen without their name. An automaton is made here and goes with the request.
    """
    with _blaming(params):
        checked = checked_constraint(params)
        if checked.constraint.kind == "json" and checked.constraint.value is False:
            raise UnsupportedConstraint("no value satisfies the schema")
        backends, automaton = _backends_for(checked, params.backend or AUTO, host, on_device)
    constraint = checked.constraint
    return GuideRequest(
        backend=backends[0],
        kind=constraint.kind,
        value=json.dumps(constraint.value, ensure_ascii=False, separators=(",", ":")),
        automaton=automaton,
        others=tuple(_cheapest(backends[1:], host)),
    )


def first_that_compiles(
    guide: GuideRequest, compiled: Callable[[GuideRequest], _Guide], host: PluginHost
) -> tuple[GuideRequest, _Guide]:
    """The request of the first of its backends that can compile it, and what that made of it."""
    reasons: list[str] = []
    for name in (guide.backend, *guide.others):
        one = structs.replace(guide, backend=name, others=())
        try:
            if name != guide.backend:
                one = structs.replace(one, automaton=_automaton(one, host))
            return one, compiled(one)
        except UnsupportedConstraint as error:
            if not guide.others:
                raise
            reasons.append(f"{name}: {error}")
    raise UnsupportedConstraint(f"the constraint cannot be enforced: {'; '.join(reasons)}")


def remembering_choice(
    host: PluginHost, *, on_device: bool = False
) -> Callable[[GuidedParams], GuideRequest]:
    """``choose_guide`` for constraints that come again: understanding one takes milliseconds."""

    @lru_cache(MOST_REMEMBERED)
    def chosen(asked: AskedGuide) -> GuideRequest:
        return choose_guide(read_asked(asked), host, on_device=on_device)

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


def _backends_for(
    checked: CheckedConstraint, asked: str, host: PluginHost, on_device: bool
) -> tuple[list[str], bytes]:
    """Names of those that enforce all of it, and the automaton if the first makes one."""
    backends = host.guided_backends
    names = sorted(backends.names(), key=lambda name: backends.info(name).metadata["rank"])
    if asked == AUTO and not on_device:  # automata are walked on the host as well, more slowly
        names.sort(key=lambda name: backends.info(name).metadata["automata"])
    if asked != AUTO:
        if asked not in names:
            asked = GUIDED_BACKENDS.get(asked, asked)
        if asked not in names:
            raise ParameterError(
                f"guided backend {shown(asked)} is not registered; {close_or_known(asked, names)}"
            )
        names = [asked]
    reasons: list[str] = []
    able: list[str] = []
    for name in names:
        if lacks := checked.features - set(backends.info(name).metadata["keywords"]):
            reasons.append(f"{name} lacks {', '.join(sorted(lacks))}")
        else:
            able.append(name)
    while able:
        if not backends.info(able[0]).metadata["automata"]:
            return able, b""
        try:
            return able, _packed(able[0], checked.constraint, host)
        except UnsupportedConstraint as error:
            reasons.append(f"{able.pop(0)}: {error}")
    if not reasons:
        raise UnsupportedConstraint(
            f"{checked.constraint.kind} cannot be enforced: no guided backend is registered; "
            "install a plugin that gives one"
        )
    raise UnsupportedConstraint(f"the constraint cannot be enforced: {'; '.join(reasons)}")


def _cheapest(names: list[str], host: PluginHost) -> list[str]:
    """One at most: a bomb that one refuses is not to keep all others busy, or have them loaded."""
    is_native = {name: host.guided_backends.info(name).metadata["native"] for name in names}
    return sorted(names, key=lambda name: not is_native[name])[:1]


def _automaton(guide: GuideRequest, host: PluginHost) -> bytes:
    """The automaton of its backend; empty where that makes none."""
    if not host.guided_backends.info(guide.backend).metadata["automata"]:
        return b""
    constraint = Constraint(kind=guide.kind, value=json.loads(guide.value))
    return _packed(guide.backend, constraint, host)


def _packed(name: str, constraint: Constraint, host: PluginHost) -> bytes:
    from octavo.guided.byte_automaton import pack  # imports numpy, which few need that import this

    backends = host.guided_backends
    backend = cast(AutomatonBackend, backends.load(name))
    call = f"guided backend {name!r}"
    with host.faults.guard(backends.info(name).plugin, call, request=True):
        if not hasattr(backend, "automaton"):
            former = former_members(backend, backends.formerly)
            raise TypeError(f"it was added with automata=True, and lacks automaton(){former}")
        return pack(backends.bind(name, backend.automaton)(constraint)).tobytes()
