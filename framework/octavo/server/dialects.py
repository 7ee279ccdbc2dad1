"""How the clients of a path expect to be told of errors."""

from __future__ import annotations

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
"""Of a status; the others are the request's own fault."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """OpenAI's error object, or Anthropic's."""

    is_anthropic: bool = False
    names: Mapping[str, str] = field(default_factory=dict)
    """Of parameters: the engine's to the path's, where they differ."""

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
            return {"type": "error", "error": told}
        return {"error": {**told, "param": param, "code": code}}


_NAMES: Final = {"extra_args": "vllm_xargs"}
OPENAI: Final = Dialect(names=_NAMES)
ANTHROPIC: Final = Dialect(is_anthropic=True)
_RESPONSES: Final = Dialect(
    names={
        **_NAMES,
        "prompt": "input",
        "messages": "input",
        "max_tokens": "max_output_tokens",
        "logprobs": "top_logprobs",
    }
)
_DIALECTS: Final = {
    "chat/completions": Dialect(names={**_NAMES, "prompt": "messages"}),
    "responses": _RESPONSES,
    "responses/input_tokens": _RESPONSES,
}


def dialect_of(path: str) -> Dialect:
    """The dialect of a request's path, with or without a proxy's prefix."""
    route = path.partition("/v1/")[2]
    if route.partition("/")[0] == "messages":
        return ANTHROPIC
    return _DIALECTS.get(route, OPENAI)
