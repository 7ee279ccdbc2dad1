"""Core schemas as nodes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from octavo.errors import UnsupportedConstraint
from octavo.guided.schema import regex
from octavo.guided.schema.regex import Regex
from octavo.guided.schema.regex_parse import parse_pattern
from octavo_plugins.guided.automaton.numbers import number
from octavo_plugins.guided.automaton.parts import END, Graph
from octavo_plugins.guided.automaton.strings import literal, quoted, string, unlisted

Core = Mapping[str, Any] | bool
Write = Callable[[int], int]
"""Makes the nodes of something that the given node stands behind."""
_ANY: Core = {
    "anyOf": [
        {"enum": [None, True, False]},
        {"type": "number"},
        {"type": "string"},
        {"type": "array", "items": True},
        {"type": "object", "additionalProperties": True},
    ]
}
MOST_COUNTED = 4096
"""Items or properties of one schema."""


class SchemaWriter:
    """Writes values of core schemas into a graph."""

    def __init__(self, graph: Graph, definitions: Mapping[str, Core]) -> None:
        self._graph = graph
        self._definitions = definitions
        self._parts: dict[str, int] = {}

    def value(self, core: Core, target: int) -> int:
        """A value, then the target."""
        graph = self._graph
        if core is False:
            return graph.fork()
        if core is True:
            return self._called("", _ANY, target)
        if "$ref" in core:
            name = core["$ref"].removeprefix("#/$defs/")
            return self._called(core["$ref"], self._definitions[name], target)
        if "anyOf" in core:
            return graph.fork(*(self.value(each, target) for each in core["anyOf"]))
        if "const" in core or "enum" in core:
            values = core.get("enum", [core.get("const")])
            return graph.fork(*(graph.literal(literal(each), target) for each in values))
        match core["type"]:
            case "null":
                return graph.literal(b"null", target)
            case "boolean":
                return graph.fork(graph.literal(b"true", target), graph.literal(b"false", target))
            case "integer" | "number":
                if len(core) == 1:
                    return number(graph, core, target)
                return self._once(core, lambda: number(graph, core, END), target)
            case "string":
                if "pattern" not in core:
                    return string(graph, core, target)
                return self._once(core, lambda: string(graph, core, END), target)
            case "array":
                return self._array(core, target)
        return self._object(core, target)

    def _once(self, core: Core, write: Callable[[], int], target: int) -> int:
        """What takes many states is a part, so that it is there once."""
        name = json.dumps(core)
        if name not in self._parts:
            self._parts[name] = write()
        return self._graph.call(self._parts[name], target)

    def _called(self, name: str, core: Core, target: int) -> int:
        """What may be inside itself."""
        if name not in self._parts:
            place = self._parts[name] = self._graph.place()
            self._graph.fill(place, self.value(core, END))
        return self._graph.call(self._parts[name], target)

    def _array(self, core: Mapping[str, Any], target: int) -> int:
        low, high = core.get("minItems", 0), core.get("maxItems")
        prefix, rest = core.get("prefixItems", [])[:high], core["items"]
        close = self._token(b"]", target)
        if rest is False:
            first = further = self._graph.fork() if low > len(prefix) else close
        else:
            most = None if high is None else high - len(prefix)
            first, further = self._repeated(
                lambda behind: self.value(rest, behind), max(0, low - len(prefix)), most, close
            )
        for place in reversed(range(len(prefix))):
            first, further = self._begun(self.value(prefix[place], further))
            if place >= low:
                first, further = self._graph.fork(first, close), self._graph.fork(further, close)
        return self._graph.literal(b"[", first)

    def _object(self, core: Mapping[str, Any], target: int) -> int:
        graph = self._graph
        listed: Mapping[str, Core] = core.get("properties", {})
        named = [(name, item) for name, item in listed.items() if item is not False]
        # Where their number is bound, all that are listed are required.
        low, high = max(0, core.get("minProperties", 0) - len(named)), core.get("maxProperties")
        most = None if high is None else max(0, high - len(named))
        close = self._token(b"}", target)
        first, further = self._repeated(self._others(core, list(listed)), low, most, close)
        for name, item in reversed(named):
            without = first, further
            pair = graph.literal(literal(name), self._colon(item, further))
            first, further = self._begun(pair)
            if name not in core.get("required", []):
                first, further = graph.fork(first, without[0]), graph.fork(further, without[1])
        return graph.literal(b"{", first)

    def _others(self, core: Mapping[str, Any], listed: list[str]) -> Write:
        """A property that is not listed: by the patterns for names, or by none of them."""
        graph = self._graph
        own = regex.other(regex.alt(*map(regex.text, listed)))
        choices: list[tuple[Regex, Core]] = [
            (parse_pattern(pattern), item)
            for pattern, item in core.get("patternProperties", {}).items()
        ]
        rest: Core = core["additionalProperties"]

        def pair(target: int) -> int:
            pairs = [
                quoted(graph, regex.both(names, own), self._colon(item, target))
                for names, item in choices
                if item is not False
            ]
            if rest is not False and choices:
                names = regex.other(regex.alt(*(names for names, _ in choices)))
                pairs.append(quoted(graph, regex.both(names, own), self._colon(rest, target)))
            elif rest is not False:
                pairs.append(unlisted(graph, listed, self._colon(rest, target)))
            return graph.fork(*pairs)

        return pair

    def _repeated(self, one: Write, low: int, high: int | None, close: int) -> tuple[int, int]:
        """So many and the end, as the first of a container, and behind others."""
        graph = self._graph
        counted = low if high is None else high
        if counted > MOST_COUNTED:
            raise UnsupportedConstraint(f"an automaton counts no more than {MOST_COUNTED} items")
        if counted > 1:
            part = one(END)

            def one(behind: int) -> int:
                return graph.call(part, behind)

        first = further = close
        if high is None:
            further = graph.place()
            begun, more = self._begun(one(further))
            graph.fill(further, more, close)
            first = graph.fork(begun, close)
        for place in reversed(range(counted)):
            first, further = self._begun(one(further))
            if place >= low:
                first, further = graph.fork(first, close), graph.fork(further, close)
        return first, further

    def _begun(self, item: int) -> tuple[int, int]:
        """An item as the first of a container, and behind others."""
        first = self._graph.spaced(item)
        return first, self._token(b",", first)

    def _colon(self, core: Core, target: int) -> int:
        return self._token(b":", self._graph.spaced(self.value(core, target)))

    def _token(self, data: bytes, target: int) -> int:
        return self._graph.spaced(self._graph.literal(data, target))
