"""Results in OpenAI's batch format, and the file that they are appended to."""

from __future__ import annotations

import fcntl
import json
import os
import uuid
from pathlib import Path
from typing import IO, Any

from octavo.errors import ConfigError, OctavoError, RequestFailedError
from octavo.server.http.errors import full_reply_to
from octavo_registry.faults import one_line

RETRIED_FROM = 500
"""Statuses from here on are failures of ours: the next run tries those lines again."""


def answer(custom_id: str | None, status: int, body: dict[str, Any]) -> dict[str, Any]:
    """The line of a request, with what a server would have answered."""
    return {
        "id": f"batch_req_{uuid.uuid4().hex}",
        "custom_id": custom_id,
        "response": {"status_code": status, "request_id": uuid.uuid4().hex, "body": body},
        "error": None,
    }


def refusal(custom_id: str | None, error: Exception, url: str = "") -> dict[str, Any]:
    """The line of a request to ``url`` that was refused or has failed."""
    if not isinstance(error, OctavoError):
        error = RequestFailedError(one_line(error))
    reply = full_reply_to(error, url)
    return answer(custom_id, reply.status, reply.body())


class ResultsFile:
    """Appends results; what an earlier run has answered stays and is known by its custom_id.

    A file that holds anything else is refused and left as it is, as is one that another run writes.
    """

    def __init__(self, path: Path) -> None:
        self.done: set[str] = set()
        path = path.resolve()
        if path.exists() and not path.is_file():
            raise ConfigError(f"{path} is no file that results could be kept in; give an --output")
        try:
            # Both stay locked: another run opens the one or the other.
            self._earlier = _locked(path, "ab+")
            kept = self._kept(path)
            new = path.with_name(f".{path.name}.new")
            self._file = _locked(new, "ab")
            self._file.truncate(0)
            self._file.writelines(kept)
            self._file.flush()
            new.replace(path)
        except OSError as error:
            raise ConfigError(f"{path} cannot be written: {error.strerror}") from error

    def __enter__(self) -> ResultsFile:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()
        self._earlier.close()

    def append(self, result: dict[str, Any]) -> None:
        """Write a result so that it outlives this process; in ASCII, where no character is cut."""
        self._file.write(json.dumps(result).encode() + b"\n")
        self._file.flush()

    def _kept(self, path: Path) -> list[bytes]:
        """The lines that stay; notes whom they answer."""
        kept = []
        for number, line in enumerate(path.read_bytes().splitlines(keepends=True), start=1):
            match _parsed(line):
                case {"custom_id": custom_id, "response": {"status_code": int(status)}}:
                    if custom_id is not None and status < RETRIED_FROM:
                        self.done.add(str(custom_id))
                        kept.append(line.rstrip() + b"\n")
                case None if line.startswith(b"{") and not line.endswith(b"\n"):
                    pass  # cut off when the earlier run ended
                case _:
                    raise ConfigError(
                        f"line {number} of {path} is no result of a batch; give another --output"
                    )
        return kept


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _locked(path: Path, mode: str) -> IO[bytes]:
    file = path.open(mode)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.close()
        raise ConfigError(f"another run writes {path}; wait for it, or give an --output") from error
    if os.fstat(file.fileno()).st_ino != path.stat().st_ino:  # replaced since it was opened
        file.close()
        return _locked(path, mode)
    return file
