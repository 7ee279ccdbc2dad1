"""HTTP on the standard library: JSON, and files that go on where a transfer was cut."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from typing import IO, Any, Final
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

TIMEOUT_SECONDS: Final = 30.0
IMPATIENT_TIMEOUT_SECONDS: Final = 5.0
MAX_IDLE_ATTEMPTS: Final = 5
"""Tries in a row that bring no byte."""
MAX_WAIT_SECONDS: Final = 30.0
CHUNK_BYTES: Final = 1 << 20
BUSY: Final = (408, 425, 429, 500, 502, 503, 504)


class StatusError(Exception):
    """The server's answer is no success."""

    def __init__(self, status: int, code: str, wait_seconds: float | None) -> None:
        super().__init__(f"HTTP {status}" + (f", {code}" if code else ""))
        self.status = status
        self.code = code
        """The hub's own name of the error, where it gives one."""
        self.wait_seconds = wait_seconds

    @property
    def may_pass(self) -> bool:
        """Whether the same request may succeed a little later."""
        return self.status in BUSY


class UnreachableError(Exception):
    """No answer, or the answer was cut, or nobody can read it."""

    may_pass = True


class NotConnectedError(UnreachableError):
    """The hub's host is not known or takes no connection, as without a network."""


class Stopped(Exception):
    """Another file's download failed, and so this one was given up."""


class HubClient:
    """Requests to one hub; may be used from any thread."""

    def __init__(
        self,
        secrets: Mapping[str, str],
        *,
        retry_seconds: float = 1.0,
        is_patient: bool = True,
    ) -> None:
        """``secrets`` are headers that only the host of a request's own URL may see.

        Without patience each request is made once, and briefly waited for.
        """
        self._secrets = dict(secrets)
        self._retry_seconds = retry_seconds
        self._max_attempts = MAX_IDLE_ATTEMPTS if is_patient else 1
        self._timeout_seconds = TIMEOUT_SECONDS if is_patient else IMPATIENT_TIMEOUT_SECONDS
        self._opener = build_opener(_SecretsStayAtHost(self._secrets))
        self.stop = threading.Event()
        """Ends the downloads under way."""

    def json(self, url: str) -> Any:
        """The document at ``url``; a busy server is asked again, one that is not there is not."""
        for attempt in count():
            try:
                with self._open(url, 0) as answer:
                    text = _read(answer)
                break
            except NotConnectedError:
                raise
            except (StatusError, UnreachableError) as error:
                self._wait_or_raise(error, attempt)
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise UnreachableError(f"{url} answers no JSON") from error

    def download(
        self, url: str, path: Path, num_bytes: int, on_bytes: Callable[[int], None]
    ) -> None:
        """Append to ``path`` until it has ``num_bytes``, however often the transfer is cut.

        ``on_bytes`` is told of each chunk, and by a negative number of bytes that count no more.
        An OSError is the disk's.
        """
        path.touch()
        attempt = 0
        while (have := path.stat().st_size) < num_bytes:
            try:
                with self._open(url, have) as answer, path.open("ab") as file:
                    if have and answer.status != 206:  # the server cannot go on in the middle
                        file.truncate(0)
                        on_bytes(-have)
                        have = 0
                    self._copy(answer, file, num_bytes - have, on_bytes)
                error: StatusError | UnreachableError = UnreachableError("the transfer was cut")
            except (StatusError, UnreachableError) as failure:
                error = failure
            now = path.stat().st_size
            attempt = 0 if now > have else attempt + 1
            if now < num_bytes:
                self._wait_or_raise(error, attempt)

    def _copy(
        self, answer: Any, file: IO[bytes], num_bytes: int, on_bytes: Callable[[int], None]
    ) -> None:
        """At most ``num_bytes``, however much is sent."""
        while chunk := _read(answer, min(CHUNK_BYTES, num_bytes)):
            if self.stop.is_set():
                raise Stopped
            file.write(chunk)
            on_bytes(len(chunk))
            num_bytes -= len(chunk)

    def _open(self, url: str, start: int) -> Any:
        try:
            request = Request(url, headers={"User-Agent": "octavo"})
            if start:
                request.add_header("Range", f"bytes={start}-")
            for name, value in self._secrets.items():
                request.add_unredirected_header(name, value)
            return self._opener.open(request, timeout=self._timeout_seconds)
        except HTTPError as error:
            with error:
                wait = error.headers.get("Retry-After", "")
                raise StatusError(
                    error.code,
                    error.headers.get("X-Error-Code", ""),
                    float(wait) if wait.isdecimal() else None,
                ) from error
        except (OSError, http.client.HTTPException, ValueError) as error:  # or it is no URL
            raise _unreachable(error) from error

    def _wait_or_raise(self, error: StatusError | UnreachableError, attempt: int) -> None:
        """Wait before the next attempt; a final error is raised, as is the last attempt's."""
        if not error.may_pass or attempt + 1 >= self._max_attempts:
            raise error
        wait = self._retry_seconds * 2**attempt
        if isinstance(error, StatusError) and error.wait_seconds is not None:
            wait = error.wait_seconds
        if self.stop.wait(min(wait, MAX_WAIT_SECONDS)):
            raise Stopped


def _read(answer: Any, num_bytes: int | None = None) -> bytes:
    try:
        read: bytes = answer.read(num_bytes)
        return read
    except (OSError, http.client.HTTPException) as error:
        raise _unreachable(error) from error


def _unreachable(error: Exception) -> UnreachableError:
    """Urllib wraps what kept it from asking; what goes wrong later comes as it is."""
    reason = error.reason if isinstance(error, URLError) else error
    kind = NotConnectedError if isinstance(error, URLError) else UnreachableError
    return kind(" ".join(str(reason).split()) or type(error).__name__)


class _SecretsStayAtHost(HTTPRedirectHandler):
    """A moved repository's token goes along; a storage server on another host never sees it."""

    def __init__(self, secrets: Mapping[str, str]) -> None:
        self._secrets = secrets

    def redirect_request(
        self, req: Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> Request | None:
        moved = super().redirect_request(req, fp, code, msg, headers, newurl)
        if moved is not None and urlsplit(newurl)[:2] == urlsplit(req.full_url)[:2]:
            for name, value in self._secrets.items():
                moved.add_unredirected_header(name, value)
        return moved
