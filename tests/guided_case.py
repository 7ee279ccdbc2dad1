"""One line of the table of features, and the schemas that its lines are made of."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Case:
    """One core schema that uses a feature."""

    feature: str
    schema: dict[str, Any]
    valid: tuple[str, ...]
    invalid: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.feature} {json.dumps(self.schema)[:90]}"


def case(feature: str, schema: dict[str, Any], valid: list[str], invalid: list[str]) -> Case:
    return Case(feature, schema, tuple(valid), tuple(invalid))


def objects(
    properties: dict[str, Any], required: tuple[str, ...] = (), rest: Any = False, **more: Any
) -> dict[str, Any]:
    named = {"properties": properties} if properties else {}
    needed = {"required": list(required)} if required else {}
    return {"type": "object", **named, **needed, "additionalProperties": rest, **more}


def arrays(items: Any, **more: Any) -> dict[str, Any]:
    return {"type": "array", "items": items, **more}


A, INT = {"const": "a"}, {"type": "integer"}
