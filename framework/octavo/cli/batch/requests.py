"""A line of a batch file as a request; what it asks for and cannot get is refused by name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from octavo.errors import OctavoError
from octavo.params import SamplingParams, shown
from octavo_registry.naming import near_matches

CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"

SAMPLING: Final = {
    **{
        name: name
        for name in (
            "temperature", "top_p", "n", "stop", "seed", "presence_penalty", "frequency_penalty",
            "logit_bias", "max_tokens", "top_k", "min_p", "repetition_penalty", "min_tokens",
            "ignore_eos", "stop_token_ids", "skip_special_tokens", "bad_words",
            "include_stop_str_in_output", "allowed_token_ids", "truncate_prompt_tokens",
        )
    },
    "max_completion_tokens": "max_tokens",
}  # fmt: skip
"""Field of a body to field of SamplingParams."""
TEMPLATE: Final = (
    "chat_template",
    "chat_template_kwargs",
    "add_generation_prompt",
    "continue_final_message",
)
"""Of a chat's body: how its prompt is made."""
WITHOUT_EFFECT: Final = (
    "user", "metadata", "service_tier", "store", "safety_identifier", "prompt_cache_key",
)  # fmt: skip
"""Taken, as they cannot change the tokens."""
ONLY: Final[Mapping[str, tuple[object, ...]]] = {
    "stream": (False,),
    "stream_options": (),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "echo": (False,),
    "suffix": ("",),
    "best_of": (1,),
    "tools": ([],),
    "tool_choice": ("none",),
    "parallel_tool_calls": (True, False),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
}
"""Known, but not given by a batch: null and these values ask for nothing, others are refused."""


class BadLine(OctavoError):
    """A line that cannot be answered, with the HTTP status that a server would give."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRequest:
    """One line that can be tried."""

    custom_id: str
    url: str
    prompt: str | list[int] | None
    """For completions."""
    messages: list[Any] | None
    """For a chat."""
    sampling: dict[str, Any] = field(default_factory=dict)
    template: dict[str, Any] = field(default_factory=dict)

    def params(self, default: SamplingParams) -> SamplingParams:
        """The model's recommendation, changed by the body.

        As in the API, a chat without ``max_tokens`` goes on until the model ends it.
        """
        given = {"output_kind": "final", **self.sampling}
        if self.url == CHAT and default.max_tokens == SamplingParams().max_tokens:
            given.setdefault("max_tokens", None)
        return replace(default, **given)


def parse_line(text: str) -> tuple[str, dict[str, Any]]:
    """The custom_id and the line as an object."""
    try:
        line = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadLine(f"the line is no JSON: {error}") from error
    custom_id = line.get("custom_id") if isinstance(line, dict) else None
    if not isinstance(custom_id, str) or not custom_id:
        raise BadLine(f"custom_id={shown(custom_id)} must be text, its own for each line")
    return custom_id, line


def read_request(custom_id: str, line: Mapping[str, Any], served_model: str) -> BatchRequest:
    """Check all that the line says."""
    url, body = line.get("url"), line.get("body")
    unknown = line.keys() - {"custom_id", "method", "url", "body"}
    if unknown:
        raise BadLine(f"a line has no field {sorted(unknown)[0]!r}")
    if line.get("method", "POST") != "POST":
        raise BadLine(f"method={shown(line['method'])} must be 'POST'", 405)
    if url not in (CHAT, COMPLETIONS):
        raise BadLine(f"url={shown(url)} is not one of {CHAT}, {COMPLETIONS}", 404)
    if not isinstance(body, dict):
        raise BadLine(f"body={shown(body)} must be an object")
    if body.get("model") != served_model:
        raise BadLine(
            f"model={shown(body.get('model'))}, but this run has {served_model!r}: give the other "
            "lines a file of their own, or the name with --served-model-name",
            404,
        )
    sampling, template = {}, {}
    own = "messages" if url == CHAT else "prompt"
    for name, value in body.items():
        if value is None or name in ("model", own, *WITHOUT_EFFECT):
            continue
        if name in SAMPLING:
            if SAMPLING[name] in sampling:
                raise BadLine("max_tokens and max_completion_tokens are the same; give one")
            sampling[SAMPLING[name]] = _with_int_keys(value) if name == "logit_bias" else value
        elif name in TEMPLATE and url == CHAT:
            template[name] = value
        elif name not in ONLY:
            known = (*SAMPLING, *TEMPLATE, *WITHOUT_EFFECT, *ONLY, own)
            raise BadLine(f"{url} has no field {name!r}; {near_matches(name, known)}")
        elif value not in ONLY[name]:
            raise BadLine(f"{name}={shown(value)} is not available in a batch; leave it out")
    return BatchRequest(
        custom_id=custom_id,
        url=url,
        prompt=_prompt(body.get("prompt")) if url == COMPLETIONS else None,
        messages=_messages(body.get("messages")) if url == CHAT else None,
        sampling=sampling,
        template=template,
    )


def _prompt(value: object) -> str | list[int]:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value and all(type(token) is int for token in value):
        return value
    raise BadLine(f"prompt={shown(value)} must be text or token ids: one prompt a line")


def _messages(value: object) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise BadLine(f"messages={shown(value)} must be a list with at least one message")
    return value


def _with_int_keys(value: object) -> object:
    """JSON's keys are text."""
    try:
        return {int(key): bias for key, bias in value.items()}  # type: ignore[attr-defined]
    except (AttributeError, ValueError):
        raise BadLine(f"logit_bias={shown(value)} must map token ids to numbers") from None
