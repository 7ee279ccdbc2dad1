"""Functions as OpenAI's chat had them before tools: ``functions``, ``function_call``."""

from __future__ import annotations

from typing import Any

from octavo.errors import MessageError
from octavo.server.http.errors import HttpError


def as_tools(functions: list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
    """The functions as tools."""
    if not functions:
        return None
    return [{"type": "function", "function": function} for function in functions]


def as_tool_choice(choice: str | dict[str, Any] | None) -> str | dict[str, Any] | None:
    """``function_call`` as a choice of tools."""
    if not isinstance(choice, dict):
        if choice not in (None, "none", "auto"):
            raise HttpError(
                400,
                f"function_call={choice[:64]!r} must be 'none', 'auto' or an object with a name",
                param="function_call",
            )
        return choice
    return {"type": "function", "function": choice}


def with_tool_calls(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages with calls of functions, and what those gave, as calls of tools.

    A function's message answers the call before it; one without a call stays as it is.
    """
    made, last = [], None
    for index, given in enumerate(messages):
        message = given
        call = given.get("function_call")
        if given.get("role") == "assistant" and call is not None:
            if given.get("tool_calls"):
                raise MessageError(f"messages[{index}] has function_call and tool_calls; give one")
            last = f"call_{index}"
            message = {name: value for name, value in given.items() if name != "function_call"}
            message["tool_calls"] = [{"id": last, "type": "function", "function": call}]
        elif given.get("role") == "function" and last is not None:
            message = {**given, "role": "tool", "tool_call_id": last}
            last = None
        made.append(message)
    return made
