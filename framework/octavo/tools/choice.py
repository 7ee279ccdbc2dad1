"""What a request says of tools, checked: which there are, and which the model may or must call."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from octavo.errors import ParameterError
from octavo.wording import shown
from octavo_registry import ToolDefinition

MAX_TOOLS: Final = 4096
"""OpenAI takes 128; agents with several MCP servers have more. Bytes bound them, too: a body's."""
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_MODES: Final = ("auto", "required")


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUse:
    """The tools of one request."""

    tools: tuple[ToolDefinition, ...]
    """What the model is shown, and by which its calls are read."""
    allowed: tuple[ToolDefinition, ...]
    """Tools that the model may call."""
    choice: Literal["auto", "required", "named"]
    parallel: bool
    """Whether it may make several calls."""

    @property
    def is_guided(self) -> bool:
        """Whether the request asks for more than the model does by itself."""
        strict = any(tool["function"].get("strict") for tool in self.allowed)
        return strict or self.choice != "auto" or len(self.allowed) < len(self.tools)


def read_tool_use(
    tools: Sequence[ToolDefinition] | None, tool_choice: object, parallel: bool | None
) -> ToolUse | None:
    """Check OpenAI's three arguments; None: the request has no use for tools.

    ``tool_choice`` None means "auto", and ``parallel`` None True.
    """
    by_name = _by_name(tools)
    choice, names = _choice(tool_choice)
    for name in names or ():
        if name not in by_name:
            raise _refused(
                "tool_choice", f"names {shown(name)}, which is not among the tools", by_name
            )
    if choice == "none" or not by_name:
        if choice in ("none", "auto"):
            return None
        raise _refused("tool_choice", "asks for a call, and there are no tools")
    if not isinstance(parallel, (bool, type(None))):
        raise _refused("parallel_tool_calls", f"={shown(parallel)} must be True or False")
    return ToolUse(
        tools=tuple(by_name.values()),
        allowed=tuple(by_name[name] for name in (by_name if names is None else names)),
        choice=choice,
        parallel=parallel is not False and choice != "named",
    )


def _by_name(tools: object) -> dict[str, ToolDefinition]:
    if not isinstance(tools, (list, tuple, type(None))):
        raise _refused("tools", f"={shown(tools)} must be a list")
    tools = tools or ()
    check_count(len(tools))
    by_name: dict[str, ToolDefinition] = {}
    for index, tool in enumerate(tools):
        name = _checked_tool(f"[{index}]", tool)
        if name in by_name:
            raise _refused("tools", f"[{index}].function.name={name!r} is the name of two tools")
        by_name[name] = tool
    return by_name


def check_count(num_tools: int) -> None:
    """Raise for more than may be looked at on an event loop."""
    if num_tools > MAX_TOOLS:
        raise _refused("tools", f"has {num_tools} entries; at most {MAX_TOOLS}")


def _checked_tool(where: str, tool: object) -> str:
    function = tool.get("function") if isinstance(tool, Mapping) else None
    if not isinstance(tool, Mapping) or tool.get("type", "function") != "function":
        kind = tool.get("type") if isinstance(tool, Mapping) else tool
        raise _refused("tools", f"{where}.type={shown(kind)} must be 'function'")
    if not isinstance(function, Mapping):
        raise _refused("tools", f"{where}.function={shown(function)} must be an object")
    name = function.get("name")
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise _refused(
            "tools",
            f"{where}.function.name={shown(name)} must have 1 to 64 characters of "
            "A-Z a-z 0-9 _ . -",
        )
    for key, kind, wanted in (
        ("description", str, "text"),
        ("parameters", Mapping, "a JSON schema of an object"),
        ("strict", bool, "true or false"),
    ):
        if not isinstance(function.get(key), (kind, type(None))):
            raise _refused(
                "tools", f"{where}.function.{key}={shown(function[key])} must be {wanted}"
            )
    if (function.get("parameters") or {}).get("type", "object") != "object":
        raise _refused("tools", f"{where}.function.parameters must have the type 'object'")
    return name


def _choice(given: object) -> tuple[Any, list[str] | None]:
    """Return the choice, and the names that it is limited to."""
    if given is None:
        return "auto", None
    if isinstance(given, str):
        if given in ("none", *_MODES):
            return given, None
    elif isinstance(given, Mapping):
        kind = given.get("type")
        _check_keys(given, {"type", str(kind)})
        if kind == "function":
            return "named", [_named(given)]
        limits = given.get("allowed_tools")
        if kind == "allowed_tools" and isinstance(limits, Mapping):
            mode, tools = limits.get("mode"), limits.get("tools")
            if mode in _MODES and isinstance(tools, list) and tools:
                return mode, list(dict.fromkeys(map(_named, tools)))
    raise _refused(
        "tool_choice",
        f"={shown(given)} must be 'none', 'auto', 'required', or an object of the type 'function' "
        "or 'allowed_tools'",
    )


def _check_keys(given: Mapping[Any, Any], known: set[str]) -> None:
    for key in given.keys() - known:
        raise _refused("tool_choice", f"has no {shown(key)}")


def _named(choice: object) -> str:
    function = choice.get("function") if isinstance(choice, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if isinstance(function, Mapping):
        _check_keys(function, {"name"})
    if not isinstance(name, str):
        raise _refused("tool_choice", ".function.name is missing: it says which function to call")
    return name


def _refused(param: str, problem: str, known: Mapping[str, object] | None = None) -> ParameterError:
    names = f": {', '.join(known)[:200]}" if known else ""
    space = "" if problem[:1] in "=[." else " "
    return ParameterError(f"{param}{space}{problem}{names}", param=param)
