"""How the clients of a path expect to be told of errors."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

_OPENAI_TYPES: Final = {
    429: "rate_limit_error",
    500: "server_error",
    503: "service_unavailable_error",
}
_ANTHROPIC_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
}
"""Anthropic's type of error by status; other statuses are the request's own fault."""

_ANTHROPIC_CODES: Final = frozenset(("thread_not_found",))
"""Codes that Anthropic's clients act on."""


@dataclass(frozen=True, slots=True)
class ApiDialect:
    """OpenAI's error object, or Anthropic's."""

    is_anthropic: bool = False
    names: Mapping[str, str] = field(default_factory=dict)
    """Parameters' names, the engine's to the path's, where they differ."""
    places: Mapping[re.Pattern[str], str] = field(default_factory=dict)
    """How messages name what the path has elsewhere or not at all."""

    def worded(self, text: str) -> str:
        """A message of the engine's, by the names that the path's clients know."""
        for place, here in self.places.items():
            text = place.sub(here, text)
        for name, here in self.names.items():
            # At the beginning, where the parameter stands that is wrong, and with a value.
            text = re.sub(rf"^{name}(?=[ =:.\[])|\b{name}(?==)", here, text)
        return text

    def type(self, status: int) -> str:
        """The name of errors of this status."""
        types = _ANTHROPIC_TYPES if self.is_anthropic else _OPENAI_TYPES
        return types.get(status, "invalid_request_error")

    def body(
        self, status: int, message: str, param: str | None, code: str | None
    ) -> dict[str, Any]:
        """The object that clients read."""
        told: dict[str, Any] = {"message": message, "type": self.type(status)}
        if self.is_anthropic:
            if code in _ANTHROPIC_CODES:
                told["details"] = {"error_code": code}
            return {"type": "error", "error": told}
        return {"error": {**told, "param": param, "code": code}}


_NAMES: Final = {"extra_args": "vllm_xargs"}
OPENAI: Final = ApiDialect(names=_NAMES)
_FUNCTION: Final = re.compile(r"\b(tools\[\d+\])\.function\b")
ANTHROPIC: Final = ApiDialect(
    is_anthropic=True,
    names={"stop": "stop_sequences"},
    places={
        re.compile(r"\b(tools\[\d+\])\.function\.parameters\b"): r"\1.input_schema",
        _FUNCTION: r"\1",
        re.compile(r", or set truncate_prompt_tokens=\d+ or less"): "",
    },
)
_RESPONSES: Final = ApiDialect(
    places={
        _FUNCTION: r"\1",
        # Items have become messages: their numbers are others.
        re.compile(
            r"^messages\[\d+\](?:\.(?:content|tool_calls)(?:\[\d+\])?)?(?:\.function)?[.:]? ?"
        ): "input: ",
    },
    names={
        **_NAMES,
        "prompt": "input",
        "messages": "input",
        "max_tokens": "max_output_tokens",
        "logprobs": "top_logprobs",
    },
)
_DIALECTS: Final = {
    "chat/completions": ApiDialect(names={**_NAMES, "prompt": "messages"}),
    "responses": _RESPONSES,
    "responses/input_tokens": _RESPONSES,
}


def dialect_of(path: str) -> ApiDialect:
    """The dialect of a request's path, with or without a proxy's prefix."""
    route = path.partition("/v1/")[2]
    if route.partition("/")[0] == "messages":
        return ANTHROPIC
    return _DIALECTS.get(route, OPENAI)
