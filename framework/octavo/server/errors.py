"""Errors to HTTP: the one place that maps a class to a status."""

from __future__ import annotations

import json
import logging
import re
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from octavo.errors import (
    ConfigError,
    EngineDeadError,
    OctavoError,
    ParameterError,
    PromptError,
    PromptTooLongError,
    QueueFullError,
    UnknownNameError,
    UnsupportedConstraint,
)
from octavo.params import SamplingParams
from octavo.server.dialects import OPENAI, Dialect, dialect_of

log = logging.getLogger(__name__)

RETRY_AFTER_SECONDS: Final = 1
DEAD_RETRY_SECONDS: Final = 5
"""Another engine, or another server in this one's place, may answer then."""


class HttpError(OctavoError):
    """An answer other than 200, as OpenAI's error object."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code
        self.retry_after = retry_after


@dataclass(frozen=True, slots=True)
class ErrorReply:
    """An error's status and what its object holds."""

    status: int
    message: str
    param: str | None = None
    code: str | None = None
    retry_after: int | None = None
    dialect: Dialect = OPENAI

    def body(self) -> dict[str, Any]:
        """The object that clients read."""
        return self.dialect.body(self.status, self.message, self.param, self.code)

    def json(self) -> bytes:
        """The body's bytes, in ASCII: a message may quote what a client sent."""
        return json.dumps(self.body()).encode()

    def headers(self) -> list[tuple[bytes, bytes]]:
        """What such an answer says besides its body."""
        named = []
        if self.retry_after is not None:
            named.append((b"retry-after", str(self.retry_after).encode()))
        if self.status == 401:
            named.append((b"www-authenticate", b"Bearer"))
        return named


def reply_to(error: Exception, path: str = "") -> ErrorReply:
    """The answer to a request for ``path`` that ended with this error.

    A stranger's error shows nothing of itself.
    """
    dialect, reply = dialect_of(path), _reply_to(error)
    if reply.param is not None and not isinstance(error, HttpError):
        reply = replace(reply, param=dialect.names.get(reply.param, reply.param))
    return replace(reply, dialect=dialect)


def _reply_to(error: Exception) -> ErrorReply:
    match error:
        case HttpError():
            return ErrorReply(error.status, str(error), error.param, error.code, error.retry_after)
        case PromptTooLongError():
            return ErrorReply(400, str(error), "prompt", "context_length_exceeded")
        case (
            ParameterError() | PromptError() | UnsupportedConstraint() | UnknownNameError()
            | ConfigError()
        ):  # fmt: skip
            return ErrorReply(400, str(error), _param_of(str(error)))
        case QueueFullError():
            return ErrorReply(503, str(error), code="overloaded", retry_after=RETRY_AFTER_SECONDS)
        case EngineDeadError():
            log.error("a request failed with the engine: %s", error)
            return ErrorReply(503, "the engine has ended", None, "engine_dead", DEAD_RETRY_SECONDS)
    # Its text may name files of this machine, or what a plugin keeps to itself.
    log.error("a request failed: %s", error, exc_info=not isinstance(error, OctavoError))
    return ErrorReply(500, "the request failed inside the server, whose log has the cause")


_NAMED: Final = frozenset(field.name for field in fields(SamplingParams)) | {
    "add_generation_prompt",
    "cache_salt",
    "chat_template",
    "chat_template_kwargs",
    "continue_final_message",
    "documents",
    "messages",
    "priority",
    "prompt",
    "request_id",
}


def _param_of(message: str) -> str | None:
    """Messages about a field name it first: "temperature=-1 must be ...", "17 stop strings"."""
    words = re.findall(r"[a-z_]+", message)
    return next((word for word in words if word in _NAMED), None)
