"""Errors to HTTP: the one place that maps a class to a status."""

from __future__ import annotations

import json
import logging
import re
from dataclasses import dataclass, replace
from typing import Any, Final

from octavo.errors import (
    BadRequestError,
    ConfigError,
    EngineDeadError,
    OctavoError,
    PluginError,
    PromptTooLongError,
    QueueFullError,
    UnknownAdapterError,
    UnknownNameError,
)
from octavo.multimodal.errors import MediaTooLargeError
from octavo.server.http.dialects import OPENAI, ApiDialect, dialect_of
from octavo_registry.errors import is_framework_error
from octavo_registry.faults import without_objects

log = logging.getLogger(__name__)

RETRY_AFTER_SECONDS: Final = 1
MAX_MESSAGE_CHARS: Final = 1000
"""Most that a client is told: messages quote what it has sent, and plugins need not shorten it."""
_PLUGIN: Final = re.compile(r"plugin '[^']*'")
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
    dialect: ApiDialect = OPENAI

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
        if self.status == 411:  # what follows would be taken for another request
            named.append((b"connection", b"close"))
        return named


def reply_to(error: Exception, path: str = "") -> ErrorReply:
    """What a client is told of the error that ended its request for ``path``.

    What is the server's own matter goes to the log: its text may name files of this machine, or
    what a plugin keeps to itself.
    """
    reply = full_reply_to(error, path)
    if isinstance(error, EngineDeadError):
        log.error("a request failed with the engine: %s", error)
        return replace(reply, message="the engine has ended")
    if reply.status == 500 and not isinstance(error, HttpError):
        log.error("a request failed: %s", error, exc_info=not isinstance(error, OctavoError))
        plugin = isinstance(error, PluginError) and _PLUGIN.search(str(error))
        what = f"{plugin[0]} has failed" if plugin else "the request failed"
        return replace(reply, message=f"{what} inside the server, whose log has the cause")
    return reply


def full_reply_to(error: Exception, path: str = "") -> ErrorReply:
    """The reply with all that the error says: for who may see this process's errors."""
    dialect, text = dialect_of(path), _plain(str(error))
    if not isinstance(error, HttpError):  # which already has the path's names
        text = dialect.worded(text)
    match error:
        case HttpError():
            reply = ErrorReply(error.status, text, error.param, error.code, error.retry_after)
        case MediaTooLargeError():
            reply = ErrorReply(413, text, error.param)
        case UnknownAdapterError():
            reply = ErrorReply(404, text, error.param, "model_not_found")
        case BadRequestError():
            param = error.param and dialect.names.get(error.param, error.param)
            code = "context_length_exceeded" if isinstance(error, PromptTooLongError) else None
            reply = ErrorReply(400, text, param, code)
        case ConfigError() | UnknownNameError():
            reply = ErrorReply(400, text)
        case QueueFullError():
            reply = ErrorReply(503, text, None, "overloaded", RETRY_AFTER_SECONDS)
        case EngineDeadError():
            reply = ErrorReply(503, text, None, "engine_dead", DEAD_RETRY_SECONDS)
        case OctavoError() if not is_framework_error(error):  # a plugin's refusal of the data
            reply = ErrorReply(400, text)
        case _:
            reply = ErrorReply(500, text)
    return replace(reply, dialect=dialect)


def _plain(text: str) -> str:
    """The message, short, printable and without objects; its end, which says what to do, stays."""
    text = without_objects(text)
    if len(text) > MAX_MESSAGE_CHARS:
        half = MAX_MESSAGE_CHARS // 2
        text = f"{text[:half]} ... {text[-half:]}"
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in text)
