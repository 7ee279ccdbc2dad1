"""The tools of /v1/messages as a chat describes them, and what of them cannot run here."""

from __future__ import annotations

import re
from typing import Any, Final

from octavo.errors import ParameterError
from octavo.server.protocol.conversation import LEFT_OUT, TOOL_HINTS, check_hints, read_keys
from octavo.server.protocol.notes import Notes
from octavo.tools.choice import check_count
from octavo.wording import shown

_TOOL: Final = {"type", "name", "description", "input_schema", "strict", "cache_control"}
_CHOICE: Final = {"type", "name", "disable_parallel_tool_use"}
_CHOICES: Final = {"auto": "auto", "any": "required", "none": "none"}
_ELSEWHERE: Final = re.compile(
    r"(advisor|bash|browser_toolset|code_execution|computer|computer_toolset|mcp_toolset|memory"
    r"|text_editor|tool_search_tool(?:_bm25|_regex)?|web_fetch|web_search)(_[0-9]{8})?"
)
"""Types of tools that only Anthropic's models and servers know, with the day of their release."""


def chat_tools(tools: list[dict[str, Any]] | None, notes: Notes) -> list[dict[str, Any]] | None:
    """Tools as OpenAI describes them; raises for a type that is not known."""
    if tools is None:
        return None
    check_count(len(tools))
    made = [_tool(f"tools[{i}]", tool, notes) for i, tool in enumerate(tools)]
    return [tool for tool in made if tool is not None]


def chat_tool_choice(choice: dict[str, Any] | None, notes: Notes) -> tuple[Any, bool | None]:
    """OpenAI's tool_choice and parallel_tool_calls."""
    if choice is None:
        return None, None
    choice = read_keys("tool_choice", choice, _CHOICE, notes)
    kind, only_one = choice.get("type"), choice.get("disable_parallel_tool_use")
    if not isinstance(only_one, (bool, type(None))):
        raise ParameterError(
            f"tool_choice.disable_parallel_tool_use={shown(only_one)} must be true or false",
            param="tool_choice",
        )
    parallel = None if only_one is None else not only_one
    if kind == "tool":
        return {"type": "function", "function": {"name": choice.get("name")}}, parallel
    if not isinstance(kind, str) or kind not in _CHOICES:
        raise ParameterError(
            f"tool_choice.type={shown(kind)} must be 'auto', 'any', 'tool' or 'none'",
            param="tool_choice",
        )
    return _CHOICES[kind], parallel


def _tool(where: str, given: dict[str, Any], notes: Notes) -> dict[str, Any] | None:
    """The tool; None: it cannot run here and is left out."""
    kind = given.get("type") or "custom"
    if kind != "custom":
        known = _ELSEWHERE.fullmatch(kind) if isinstance(kind, str) else None
        if known is None:
            raise ParameterError(
                f"{where}.type={shown(kind)} is not known; describe a tool of your own",
                param="tools",
            )
        notes.add(f"{where}:{known[1]}", LEFT_OUT)
        return None
    tool = read_keys(where, given, _TOOL, notes, TOOL_HINTS)
    check_hints(where, tool)
    function = {key: tool[key] for key in ("name", "description", "strict") if key in tool}
    return {"type": "function", "function": {**function, "parameters": tool.get("input_schema")}}
