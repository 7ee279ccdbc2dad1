"""Which backend enforces a constraint: the one that was named, or the fastest that can."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import cast

from octavo.engine.messages import AskedGuide, GuideRequest
from octavo.errors import BadRequestError, ParameterError, UnsupportedConstraint
from octavo.guided.constraint import (
    MOST_CHARS,
    CheckedConstraint,
    checked_constraint,
    schema_of,
)
from octavo.params import GuidedParams, shown
from octavo.vllm_names import GUIDED_BACKENDS
from octavo_registry import PluginHost
from octavo_registry.guided import Constraint, MachineBackend
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


def choose_guide(
    params: GuidedParams, host: PluginHost, *, on_device: bool = False
) -> GuideRequest:
    """Check the constraint and name its backend; raises where none enforces all of it.

    With ``on_device`` the engine's device can walk machines, and backends that make them may be
    chosen without their name. A machine is made here and goes with the request.
    """
    with _blaming(params):
        checked = checked_constraint(params)
        if checked.constraint.kind == "json" and checked.constraint.value is False:
            raise UnsupportedConstraint("no value satisfies the schema")
        backend, machine = _backend_for(checked, params.backend or AUTO, host, on_device)
    constraint = checked.constraint
    return GuideRequest(
        backend=backend,
        kind=constraint.kind,
        value=json.dumps(constraint.value, ensure_ascii=False, separators=(",", ":")),
        machine=machine,
    )


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


def _backend_for(
    checked: CheckedConstraint, asked: str, host: PluginHost, on_device: bool
) -> tuple[str, bytes]:
    """Its name, and the machine if it makes one."""
    backends = host.guided_backends
    names = sorted(backends.names(), key=lambda name: backends.info(name).metadata["rank"])
    if asked == AUTO and not on_device:
        names = [name for name in names if not backends.info(name).metadata["machines"]]
    if asked != AUTO:
        if asked not in names:
            asked = GUIDED_BACKENDS.get(asked, asked)
        if asked not in names:
            raise ParameterError(
                f"guided backend {shown(asked)} is not registered; {near_matches(asked, names)}"
            )
        names = [asked]
    reasons: list[str] = []
    for name in names:
        metadata = backends.info(name).metadata
        if lacks := checked.features - set(metadata["keywords"]):
            reasons.append(f"{name} lacks {', '.join(sorted(lacks))}")
        elif not metadata["machines"]:
            return name, b""
        else:
            try:
                return name, _machine(name, checked.constraint, host)
            except UnsupportedConstraint as error:
                reasons.append(f"{name}: {error}")
    if not reasons:
        raise UnsupportedConstraint(
            f"{checked.constraint.kind} cannot be enforced: no guided backend is registered; "
            "install a plugin that gives one"
        )
    raise UnsupportedConstraint(f"the constraint cannot be enforced: {'; '.join(reasons)}")


def _machine(name: str, constraint: Constraint, host: PluginHost) -> bytes:
    from octavo.guided.byte_machine import pack  # imports numpy, which few need that import this

    backends = host.guided_backends
    backend = cast(MachineBackend, backends.load(name))
    call = f"guided backend {name!r}"
    with host.faults.guard(backends.info(name).plugin, call, request=True):
        return pack(backend.machine(constraint)).tobytes()
