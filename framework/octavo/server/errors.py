"""Errors to HTTP: the one place that maps a class to a status."""

from __future__ import annotations

import json
import logging
import re
from dataclasses import dataclass
from typing import Any, Final

from octavo.errors import (
    ConfigError,
    EngineDeadError,
    OctavoError,
    ParameterError,
    PromptError,
    QueueFullError,
    UnknownNameError,
    UnsupportedConstraint,
)

log = logging.getLogger(__name__)

TYPES: Final = {429: "rate_limit_error", 500: "server_error", 503: "service_unavailable_error"}
"""Of a status; the others are the request's own fault."""
RETRY_AFTER_SECONDS: Final = 1


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

    @property
    def type(self) -> str:
        """OpenAI's name for errors of this status."""
        return TYPES.get(self.status, "invalid_request_error")

    def body(self) -> dict[str, Any]:
        """The object that clients read."""
        details = {
            "message": self.message,
            "type": self.type,
            "param": self.param,
            "code": self.code,
        }
        return {"error": details}

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


def reply_to(error: Exception) -> ErrorReply:
    """The answer to a request that ended with this; a stranger's error shows nothing of itself."""
    match error:
        case HttpError():
            return ErrorReply(error.status, str(error), error.param, error.code, error.retry_after)
        case (
            ParameterError() | PromptError() | UnsupportedConstraint() | UnknownNameError()
            | ConfigError()
        ):  # fmt: skip
            return ErrorReply(400, str(error), _param_of(str(error)))
        case QueueFullError():
            return ErrorReply(503, str(error), code="overloaded", retry_after=RETRY_AFTER_SECONDS)
        case EngineDeadError():
            log.error("a request failed with the engine: %s", error)
            return ErrorReply(503, "the engine has ended", code="engine_dead")
    # Its text may name files of this machine, or what a plugin keeps to itself.
    log.error("a request failed: %s", error, exc_info=not isinstance(error, OctavoError))
    return ErrorReply(500, "the request failed inside the server, whose log has the cause")


def _param_of(message: str) -> str | None:
    """Messages about a field begin with its name: "temperature=-1 must be ..."."""
    named = re.match(r"([a-z_]+)(?:\[[^\]]*\])?[=.:]", message)
    return named[1] if named else None
