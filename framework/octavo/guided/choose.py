"""Which backend enforces a constraint: the one that was named, or the fastest that can."""

from __future__ import annotations

import json

from octavo.engine.messages import GuideRequest
from octavo.errors import ParameterError, UnsupportedConstraint
from octavo.guided.constraint import CheckedConstraint, checked_constraint
from octavo.params import GuidedParams
from octavo_registry import PluginHost
from octavo_registry.naming import near_matches

AUTO = "auto"


def choose_guide(params: GuidedParams, host: PluginHost) -> GuideRequest:
    """Check the constraint and name its backend; raises where none enforces all of it."""
    checked = checked_constraint(params)
    constraint = checked.constraint
    return GuideRequest(
        backend=_backend_for(checked, params.backend or AUTO, host),
        kind=constraint.kind,
        value=json.dumps(constraint.value, ensure_ascii=False, separators=(",", ":")),
    )


def _backend_for(checked: CheckedConstraint, asked: str, host: PluginHost) -> str:
    backends = host.guided_backends
    names = sorted(backends.names(), key=lambda name: backends.info(name).metadata["rank"])
    if asked != AUTO:
        if asked not in names:
            raise ParameterError(
                f"guided backend {asked!r} is not registered; {near_matches(asked, names)}",
                param="guided",
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
            "install a plugin that gives one",
            param="guided",
        )
    reasons = "; ".join(f"{name} lacks {', '.join(lacks)}" for name, lacks in missing.items())
    raise UnsupportedConstraint(f"the constraint cannot be enforced: {reasons}", param="guided")
