"""The states of a schema as a core schema: definitions only where something is used again."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

from octavo.guided.schema.containers import State
from octavo.guided.schema.features import Features
from octavo.guided.schema.meaning import Meaning
from octavo.guided.schema.quoting import leaves_out_quotes
from octavo.guided.schema.regex import ANY_TEXT
from octavo.guided.schema.regex_render import render
from octavo.guided.schema.shape_types import (
    ArrayShape,
    NumberShape,
    ObjectShape,
    Shape,
    StringShape,
    ValueShape,
)
from octavo.guided.schema.shapes import shapes_of
from octavo.guided.schema.values import canonical, is_float, written

MAX_INLINE_DEPTH = 12
MOST_BOUND = 2**53
"""Up to it each whole number is a float; beyond it, 2**63 - 1 is one that everybody knows."""
Core = dict[str, Any] | bool


_EVERYTHING = {
    json.dumps(core)
    for core in (
        {"type": "object", "additionalProperties": True},
        {"type": "array", "items": True},
        {"type": "string"},
        {"type": "number"},
        {"enum": [False, True, None]},
    )
}


class Graph:
    """All states that can be reached from one, with their shapes, as far as something can be."""

    def __init__(self, meaning: Meaning, root: State) -> None:
        self.root = root
        self.never: State = (meaning.source.never,)
        self.shapes: dict[State, list[Shape]] = {}
        waiting = [root]
        while waiting:
            state = waiting.pop()
            if state and state not in self.shapes:
                meaning.spend()
                self.shapes[state] = shapes_of(meaning, state)
                waiting += [child for shape in self.shapes[state] for child in children(shape)]
        self._drop_endless()
        self.num_uses = Counter([root])
        for shapes in self.shapes.values():
            self.num_uses.update(child for shape in shapes for child in children(shape))

    def is_possible(self, state: State) -> bool:
        """Whether a value of finite size satisfies the state."""
        return not state or state in self.shapes

    def _drop_endless(self) -> None:
        """Drop the shapes that would have to contain themselves, and the states without shapes."""
        found: dict[State, list[Shape]] = {}
        users: dict[State, set[State]] = {}
        for state, shapes in self.shapes.items():
            for shape in shapes:
                for child in needed(shape):
                    users.setdefault(child, set()).add(state)
        waiting = set(self.shapes)
        while waiting:
            state = waiting.pop()
            kept = [
                shape
                for shape in self.shapes[state]
                if all(not child or child in found for child in needed(shape))
            ]
            if kept and state not in found:
                waiting |= users.get(state, set())  # itself too: other shapes may contain it
            if kept:
                found[state] = kept
        self.shapes = found


def children(shape: Shape) -> Iterator[State]:
    """The states that a shape is made of."""
    if isinstance(shape, ArrayShape):
        yield from (*shape.prefix, shape.rest)
    elif isinstance(shape, ObjectShape):
        yield from shape.properties.values()
        yield from (state for _, state in shape.patterns)
        yield shape.rest


def needed(shape: Shape) -> Iterator[State]:
    """States without which there is no value of the shape."""
    if isinstance(shape, ArrayShape):
        yield from shape.prefix[: shape.low]
        if shape.low > len(shape.prefix):
            yield shape.rest
    elif isinstance(shape, ObjectShape):
        yield from (shape.properties[name] for name in shape.required)


class Emitter:
    """Writes a graph as JSON Schema and notes what a backend must be able to enforce."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.features = Features()
        self._names: dict[State, str] = {}
        self._taken: set[str] = set()
        self._num_named: Counter[str] = Counter()
        self._waiting: list[State] = []
        self._definitions: dict[str, Core] = {}

    def emit(self) -> Core:
        """The whole core schema."""
        root = self.graph.root
        if not self.graph.is_possible(root):
            return False
        if self.graph.num_uses[root] > 1:
            core: Core = self._reference(root)
        else:
            core = self._written(root, 0)
        while self._waiting:
            state = self._waiting.pop()
            self._definitions[self._names[state]] = self._written(state, 0)
        self.features.note_recursion(self._definitions)
        if isinstance(core, dict) and self._definitions:
            core = {**core, "$defs": self._definitions}
        return core

    def _state(self, state: State, depth: int) -> Core:
        if not state:
            self.features.note("any")
            return True
        if not self.graph.is_possible(state):
            return False
        shapes = self.graph.shapes[state]
        simple = len(shapes) == 1 and not any(True for _ in children(shapes[0]))
        if depth < MAX_INLINE_DEPTH and (simple or self.graph.num_uses[state] == 1):
            return self._written(state, depth + 1)
        return self._reference(state)

    def _reference(self, state: State) -> dict[str, Any]:
        if state not in self._names:
            self._names[state] = self._name(state)
            self._waiting.append(state)
        self.features.note("$ref")
        return {"$ref": f"#/$defs/{self._names[state]}"}

    def _name(self, state: State) -> str:
        """The user's name for it, where it has one."""
        place, holds = state[0]
        last = place.pointer.rpartition("/")[2]
        plain = last if len(state) == 1 and holds and last.isidentifier() else "part"
        name = plain
        while name in self._taken:
            self._num_named[plain] += 1
            name = f"{plain}_{self._num_named[plain] + 1}"
        self._taken.add(name)
        return name

    def _written(self, state: State, depth: int) -> Core:
        shapes = self.graph.shapes[state]
        if len(shapes) == 1:
            return self._shape(shapes[0], depth)
        unique: dict[str, Core] = {}
        for shape in shapes:
            core = self._shape(shape, depth)
            unique.setdefault(json.dumps(core), core)
        if unique.keys() == _EVERYTHING:
            self.features.note("any")
            return True
        options = list(unique.values())
        if len(options) == 1:
            return options[0]
        self.features.note("anyOf")
        return {"anyOf": options}

    def _shape(self, shape: Shape, depth: int) -> Core:
        match shape:
            case ValueShape(values):
                return self._values(values)
            case NumberShape():
                return self._number(shape)
            case StringShape():
                return self._string(shape)
            case ArrayShape():
                return self._array(shape, depth)
            case ObjectShape():
                return self._object(shape, depth)

    def _values(self, values: tuple[Any, ...]) -> Core:
        if values == (None,):
            self.features.note("null")
            return {"type": "null"}
        if values == (False, True) and all(isinstance(value, bool) for value in values):
            self.features.note("boolean")
            return {"type": "boolean"}
        self.features.note("enum")
        self.features.note_text(*(value for value in values if isinstance(value, str)))
        values = tuple(map(canonical, values))
        if not all(is_float(value) for value in values if isinstance(value, int)):
            self.features.note("enum:large")
        return {"const": values[0]} if len(values) == 1 else {"enum": list(values)}

    def _number(self, shape: NumberShape) -> Core:
        body = shape.numbers
        whole = body.multiple is not None and body.multiple.denominator == 1
        name = "integer" if whole else "number"
        core: dict[str, Any] = {"type": name}
        self.features.note(name)
        for limit, is_open, ending in (
            (body.low, body.low_open, "inimum"),
            (body.high, body.high_open, "aximum"),
        ):
            if limit is not None:
                edge = "m" if not is_open else "exclusiveM"
                core[edge + ending] = written(limit)
                self.features.note(f"{name}:{edge}{ending}")
                if abs(limit) > MOST_BOUND and not (whole and limit == 2**63 - 1):
                    self.features.note("bounds:large")
        if body.leaves_out_a_whole_bound_near_the_other():
            self.features.note("number:bounds within a unit")
        if body.multiple is not None and body.multiple != 1:
            core["multipleOf"] = written(body.multiple)
            self.features.note(f"{name}:multipleOf")
            if len(f"{body.multiple.numerator}{body.multiple.denominator}") > 4:
                self.features.note("multipleOf:large")
            if len(core) > 2:
                self.features.note(f"{name}:multipleOf+bounds")
        return core

    def _string(self, shape: StringShape) -> Core:
        core: dict[str, Any] = {"type": "string"}
        self.features.note("string")
        if shape.low:
            core["minLength"] = shape.low
        if shape.high is not None:
            core["maxLength"] = shape.high
        if shape.pattern != ANY_TEXT:
            core["pattern"] = render(shape.pattern)
            if leaves_out_quotes(shape.pattern):
                self.features.note("pattern:quotes")
            self.features.note("pattern+length" if len(core) > 2 else "pattern")
        self.features.note(*(core.keys() & {"minLength", "maxLength"}))
        return core

    def _array(self, shape: ArrayShape, depth: int) -> Core:
        core: dict[str, Any] = {"type": "array"}
        self.features.note("array")
        if shape.prefix:
            core["prefixItems"] = [self._state(state, depth) for state in shape.prefix]
            self.features.note("prefixItems")
        rest = self._state(shape.rest, depth)
        if rest is False:
            self.features.note("items:false")
        core["items"] = rest
        if shape.low:
            core["minItems"] = shape.low
            self.features.note("minItems")
        if shape.high is not None and (rest is not False or shape.high < len(shape.prefix)):
            core["maxItems"] = shape.high
            self.features.note("maxItems")
        return core

    def _object(self, shape: ObjectShape, depth: int) -> Core:
        patterns = {render(names): self._state(state, depth) for names, state in shape.patterns}
        if any(leaves_out_quotes(names) for names, _ in shape.patterns):
            self.features.note("patternProperties:quotes")
        rest = self._state(shape.rest, depth)
        is_open = bool(patterns) or rest is not False
        properties: dict[str, Core] = {}
        for name, state in shape.properties.items():
            core = self._state(state, depth)
            if core is not False:
                properties[name] = core
            elif is_open:
                properties[name] = False
                self.features.note("properties:false")
        self.features.note("object")
        found: dict[str, Any] = {"type": "object"}
        if properties:
            found["properties"] = properties
            self.features.note("properties")
            self.features.note_text(*properties)
        if required := [name for name in shape.properties if name in set(shape.required)]:
            found["required"] = required
            self.features.note("required")
        if patterns:
            found["patternProperties"] = patterns
            self.features.note("patternProperties")
        found["additionalProperties"] = rest
        self.features.note(
            "additionalProperties:false"
            if rest is False
            else "additionalProperties:true"
            if rest is True
            else "additionalProperties:schema"
        )
        if shape.low:
            found["minProperties"] = shape.low
            some = shape.low - len(required) == 1
            self.features.note("minProperties:one more" if some else "minProperties")
        if shape.high is not None:
            found["maxProperties"] = shape.high
            self.features.note("maxProperties")
        return found
