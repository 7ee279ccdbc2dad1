"""A line of a batch file as a request to the server's routes; what they refuse is refused here."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from octavo.server.apis.chat.body import CHAT_FIELDS, ChatRequest
from octavo.server.apis.completions.body import COMPLETION_FIELDS, CompletionRequest
from octavo.server.http.errors import HttpError
from octavo.server.protocol.fields import FieldTable, read_body
from octavo.server.protocol.notes import Notes
from octavo.wording import shown

CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
_BODIES: Final[Mapping[str, tuple[type[ChatRequest | CompletionRequest], FieldTable]]] = {
    CHAT: (ChatRequest, CHAT_FIELDS),
    COMPLETIONS: (CompletionRequest, COMPLETION_FIELDS),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRequest:
    """One line that can be tried."""

    custom_id: str
    url: str
    body: dict[str, Any]


def parse_line(text: bytes) -> tuple[str, dict[str, Any]]:
    """The custom_id and the line as an object."""
    try:
        line = json.loads(text.decode())
    except (ValueError, RecursionError) as error:
        raise HttpError(400, f"the line is no JSON: {error}") from error
    custom_id = line.get("custom_id") if isinstance(line, dict) else None
    if not isinstance(custom_id, str) or not custom_id:
        raise HttpError(400, f"custom_id={shown(custom_id)} must be text, its own for each line")
    return custom_id, line


def read_request(
    custom_id: str, line: Mapping[str, Any], model_names: Collection[str]
) -> BatchRequest:
    """Check what can be checked without the model; it and its adapters have these names."""
    url, body = line.get("url"), line.get("body")
    unknown = line.keys() - {"custom_id", "method", "url", "body"}
    if unknown:
        raise HttpError(400, f"a line has no field {sorted(unknown)[0]!r}")
    if line.get("method", "POST") != "POST":
        raise HttpError(405, f"method={shown(line['method'])} must be 'POST'")
    if not isinstance(url, str) or url not in _BODIES:
        raise HttpError(404, f"url={shown(url)} is not one of {', '.join(_BODIES)}")
    if not isinstance(body, dict):
        raise HttpError(400, f"body={shown(body)} must be an object")
    if body.get("model") not in (None, *model_names):
        there = " and ".join(map(repr, model_names))
        raise HttpError(
            404,
            f"model={shown(body.get('model'))}, but this run has {there}: give the other lines a "
            "file of their own, or the name with --served-model-name or --lora-modules",
            param="model",
            code="model_not_found",
        )
    request = read_body(body, *_BODIES[url], Notes())
    if request.stream:
        raise HttpError(
            400, "stream=True is not available in a batch; leave it out", param="stream"
        )
    return BatchRequest(custom_id=custom_id, url=url, body=body)
