"""The tools of /v1/responses as a chat describes them, and what of them cannot run here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from octavo.errors import ParameterError
from octavo.server.protocol.conversation import LEFT_OUT, TOOL_HINTS, TOOLS_ELSEWHERE, read_keys
from octavo.server.protocol.notes import Notes
from octavo.tools.choice import check_count
from octavo.wording import shown

_TOOL: Final = {"type", "name", "description", "parameters", "strict"}
_NAMESPACE: Final = {"type", "name", "description", "tools"}


@dataclass(slots=True)
class ResponseTools:
    """The functions of a request, those of namespaces among them under one flat name each."""

    functions: list[dict[str, Any]] = field(default_factory=list)
    """As a chat describes them."""
    namespaced: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Flat names, and the namespace and the name in it that they stand for."""


def flat_name(namespace: str, name: str) -> str:
    """The name under which a model sees a function of a namespace."""
    return f"{namespace.removesuffix('__')}__{name}"


def read_tools(tools: list[dict[str, Any]] | None, choice: Any, notes: Notes) -> ResponseTools:
    """Read the tools; raises for a type that is not known, and for a choice that is left out."""
    read = ResponseTools()
    check_count(len(tools or ()))
    for index, tool in enumerate(tools or ()):
        _add(read, f"tools[{index}]", tool, notes)
    names = [each["function"].get("name") for each in read.functions]
    counts = Counter(name for name in names if isinstance(name, str))
    for name in read.namespaced:
        if counts[name] > 1:
            raise ParameterError(f"two tools have the name {shown(name)}", param="tools")
    if tools and not read.functions and choice == "required":
        raise ParameterError(
            "tool_choice='required', and none of the tools can run here; describe a function",
            param="tool_choice",
        )
    return read


def chat_tool_choice(
    choice: str | dict[str, Any] | None, notes: Notes
) -> str | dict[str, Any] | None:
    """The choice as a chat says it."""
    if not isinstance(choice, dict):
        return choice
    kind = choice.get("type")
    if kind == "allowed_tools":
        choice = read_keys("tool_choice", choice, {"type", "mode", "tools"}, notes)
        tools = choice.get("tools")
        named = [_named(tool) for tool in tools] if isinstance(tools, list) else tools
        return {
            "type": "allowed_tools",
            "allowed_tools": {"mode": choice.get("mode"), "tools": named},
        }
    if isinstance(kind, str) and kind in TOOLS_ELSEWHERE:
        raise ParameterError(
            f"tool_choice asks for a tool of the type {shown(kind)}, which cannot run here; "
            "describe a function",
            param="tool_choice",
        )
    if kind != "function":
        return choice
    return _named(read_keys("tool_choice", choice, {"type", "name", "namespace"}, notes))


def _named(choice: Any) -> dict[str, Any]:
    name = choice.get("name") if isinstance(choice, dict) else None
    namespace = choice.get("namespace") if isinstance(choice, dict) else None
    if isinstance(name, str) and isinstance(namespace, str):
        name = flat_name(namespace, name)
    return {"type": "function", "function": {"name": name}}


def _add(read: ResponseTools, where: str, given: Any, notes: Notes) -> None:
    tool = given if isinstance(given, dict) else {}
    kind = tool.get("type")
    if kind == "function":
        read.functions.append(_function(where, tool, notes))
    elif kind == "namespace":
        _add_namespace(read, where, tool, notes)
    elif isinstance(kind, str) and kind in TOOLS_ELSEWHERE:
        notes.add(f"{where}:{kind}", LEFT_OUT)
    else:
        raise ParameterError(
            f"{where}.type={shown(kind)} is not known; describe a function", param="tools"
        )


def _add_namespace(read: ResponseTools, where: str, given: Mapping[str, Any], notes: Notes) -> None:
    tool = read_keys(where, given, _NAMESPACE, notes, TOOL_HINTS)
    namespace, inner = tool.get("name"), tool.get("tools")
    if not isinstance(namespace, str) or not isinstance(inner, list):
        raise ParameterError(f"{where} needs a name and a list of tools", param="tools")
    for index, each in enumerate(inner):
        place = f"{where}.tools[{index}]"
        if not isinstance(each, dict) or each.get("type") == "namespace":
            raise ParameterError(f"{place} must be a tool, no namespace", param="tools")
        before = len(read.functions)
        _add(read, place, each, notes)
        for function in (made["function"] for made in read.functions[before:]):
            name = function.get("name")
            if isinstance(name, str):
                function["name"] = flat_name(namespace, name)
                if function["name"] in read.namespaced:
                    raise ParameterError(f"{place}: {shown(name)} is there twice", param="tools")
                read.namespaced[function["name"]] = (namespace, name)


def _function(where: str, given: Mapping[str, Any], notes: Notes) -> dict[str, Any]:
    tool = read_keys(where, given, _TOOL, notes, TOOL_HINTS)
    return {"type": "function", "function": {k: v for k, v in tool.items() if k != "type"}}
