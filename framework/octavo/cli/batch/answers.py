"""Results in OpenAI's batch format, and the file that they are appended to."""

from __future__ import annotations

import json
import time
import uuid
from pathlib import Path
from typing import IO, Any

from octavo.cli.batch.requests import CHAT, BadLine, BatchRequest
from octavo.errors import (
    ConfigError,
    OctavoError,
    ParameterError,
    PromptError,
    QueueFullError,
    UnsupportedConstraint,
)
from octavo.outputs import CompletionOutput, RequestOutput

REFUSALS = (ConfigError, ParameterError, PromptError, UnsupportedConstraint)
RETRIED_FROM = 500
"""Statuses from here on are failures of ours: the next run tries those lines again."""


def answer(request: BatchRequest, output: RequestOutput, model: str) -> dict[str, Any]:
    """The line of a request that was answered."""
    is_chat = request.url == CHAT
    num_prompt = len(output.prompt_token_ids)
    num_completion = sum(len(completion.token_ids) for completion in output.outputs)
    body = {
        "id": f"{'chatcmpl' if is_chat else 'cmpl'}-{uuid.uuid4().hex}",
        "object": "chat.completion" if is_chat else "text_completion",
        "created": int(time.time()),
        "model": model,
        "choices": [_choice(completion, is_chat=is_chat) for completion in output.outputs],
        "usage": {
            "prompt_tokens": num_prompt,
            "completion_tokens": num_completion,
            "total_tokens": num_prompt + num_completion,
        },
    }
    return _line(request.custom_id, 200, body)


def refusal(custom_id: str | None, error: OctavoError) -> dict[str, Any]:
    """The line of a request that was refused or has failed."""
    status = error.status if isinstance(error, BadLine) else 500
    if isinstance(error, REFUSALS):
        status = 400
    elif isinstance(error, QueueFullError):
        status = 503
    kind = "invalid_request_error" if status < RETRIED_FROM else "server_error"
    details = {"message": str(error), "type": kind, "param": None, "code": None}
    return _line(custom_id, status, {"error": details})


def _choice(completion: CompletionOutput, *, is_chat: bool) -> dict[str, Any]:
    said: dict[str, Any] = {"text": completion.text}
    if is_chat:
        said = {"message": {"role": "assistant", "content": completion.text}}
    return {
        "index": completion.index,
        **said,
        "logprobs": None,
        "finish_reason": completion.finish_reason,
    }


def _line(custom_id: str | None, status: int, body: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": f"batch_req_{uuid.uuid4().hex}",
        "custom_id": custom_id,
        "response": {"status_code": status, "request_id": uuid.uuid4().hex, "body": body},
        "error": None,
    }


class ResultsFile:
    """Appends results; what an earlier run has answered stays and is known by its custom_id."""

    def __init__(self, path: Path) -> None:
        self.done: set[str] = set()
        kept = []
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
            try:
                result = json.loads(line)
                status = result["response"]["status_code"]
                custom_id = result["custom_id"]
            except (ValueError, KeyError, TypeError):
                continue  # cut off when the earlier run ended
            if custom_id is not None and status < RETRIED_FROM:
                self.done.add(custom_id)
                kept.append(line)
        new = path.with_name(f".{path.name}.new")
        new.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")
        new.replace(path)
        self._file: IO[str] = path.open("a", encoding="utf-8")

    def __enter__(self) -> ResultsFile:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def append(self, result: dict[str, Any]) -> None:
        """Write a result so that it outlives this process."""
        self._file.write(json.dumps(result, ensure_ascii=False) + "\n")
        self._file.flush()
