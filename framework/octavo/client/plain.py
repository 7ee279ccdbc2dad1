"""One request at a time, by the standard library: a command starts in no time and needs no more."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any

from octavo.client.address import Address
from octavo.errors import OctavoError

CONNECT_SECONDS = 10.0
MAX_ERROR_BYTES = 65_536


class ServerError(OctavoError):
    """A server that cannot be reached, or an answer of it that says no."""

    def __init__(self, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        """The server's own word for it, as OpenAI's error object has it."""


def get_json(address: Address, path: str, *, timeout: float | None = 30.0) -> Any:
    """Return what a path gives."""
    with _exchange(address, "GET", path, None, timeout) as response:
        return _read_json(address, response)


def post_json(address: Address, path: str, body: Any, *, timeout: float | None = None) -> Any:
    """Send a body; return the answer."""
    with _exchange(address, "POST", path, body, timeout) as response:
        return _read_json(address, response)


def post_stream(address: Address, path: str, body: Any) -> Generator[Any, None, None]:
    """Send a body; yield each event of the answer as it comes.

    Closing the iterator closes the connection, by which a server learns that nobody reads on.
    """
    with _exchange(address, "POST", path, body, None) as response:
        for line in response:
            name, _, value = line.rstrip(b"\r\n").partition(b":")
            if name != b"data":
                continue
            if value.strip() == b"[DONE]":
                return
            event = _parsed(address, value)
            if isinstance(event, dict) and event.get("error"):
                raise ServerError(*_told(event, f"{address}: the answer failed"))
            yield event
    raise ServerError(f"{address}: the answer broke off")


@contextmanager
def _exchange(
    address: Address, method: str, path: str, body: Any, timeout: float | None
) -> Iterator[HTTPResponse]:
    connection: HTTPConnection
    if address.scheme == "https":
        connection = HTTPSConnection(address.host, address.port, timeout=CONNECT_SECONDS)
    else:
        connection = HTTPConnection(address.host, address.port, timeout=CONNECT_SECONDS)
    try:
        connection.connect()
        connection.sock.settimeout(timeout)
        headers = address.headers()
        data = None
        if body is not None:
            data = json.dumps(body).encode()
            headers["content-type"] = "application/json"
        connection.request(method, address.path + path, data, headers)
        response = connection.getresponse()
        if response.status >= 300:
            raise _refusal(address, path, response)
        yield response
    except (OSError, HTTPException) as error:
        raise ServerError(f"{address}: {error or type(error).__name__}") from error
    finally:
        connection.close()


def _refusal(address: Address, path: str, response: HTTPResponse) -> ServerError:
    try:
        body = json.loads(response.read(MAX_ERROR_BYTES))
    except ValueError:
        body = None
    silent = f"{address}{path} answers {response.status} {response.reason}"
    message, code = _told(body, silent)
    if response.status == 401:
        message += "; give the server's key with --api-key or OCTAVO_API_KEY"
    retry_after = response.headers.get("Retry-After", "")
    again = f" (try again in {retry_after} s)" if retry_after.isdigit() else ""
    return ServerError(f"{message}{again}", code)


def _told(body: Any, silent: str) -> tuple[str, str | None]:
    """Message and code of OpenAI's error object, or of the older flat one."""
    error = body.get("error", body) if isinstance(body, dict) else None
    if isinstance(error, str) and error:
        return error, None
    if not isinstance(error, dict) or not isinstance(error.get("message"), str):
        return silent, None
    code = error.get("code")
    return error["message"] or silent, code if isinstance(code, str) else None


def _read_json(address: Address, response: HTTPResponse) -> Any:
    return _parsed(address, response.read())


def _parsed(address: Address, data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError as error:
        raise ServerError(f"{address}: what came is not JSON: {data[:80]!r}") from error
