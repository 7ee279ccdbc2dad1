"""GET of hosts that are allowed, at addresses that are public.

The address that was checked is the one that is connected to, so a name that changes its address in
between gains nothing; proxies from the environment are not used, as they would look it up anew.
"""

from __future__ import annotations

import io
import re
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import cached_property
from http.client import HTTPException, HTTPResponse
from typing import Any, Final
from urllib.parse import SplitResult, urljoin, urlsplit

from octavo.multimodal.addresses import is_public
from octavo.multimodal.budget import MediaBudget
from octavo.version import __version__
from octavo_registry.faults import one_line
from octavo_registry.modalities import MediaError

Connect = Callable[[str, int, float], socket.socket]
"""From address, port and seconds to an open connection, or an OSError."""

MAX_REDIRECTS: Final = 3
REDIRECTS: Final = (301, 302, 303, 307, 308)
PIECE: Final = 1 << 16
PRINTABLE: Final = re.compile("[!-~]+")


def connect(address: str, port: int, timeout_seconds: float) -> socket.socket:
    """Open a connection to an IP address."""
    return socket.create_connection((address, port), timeout_seconds)


class Http:
    """Reads http and https URLs."""

    def __init__(
        self,
        domains: Sequence[str],
        *,
        timeout_seconds: float,
        resolve: Callable[[str, int], list[str]],
        connect: Connect,
    ) -> None:
        self._domains = [domain.lower() for domain in domains]
        self._timeout_seconds = timeout_seconds
        self._resolve = resolve
        self._connect = connect

    def get(self, url: str, budget: MediaBudget) -> bytes:
        """Return what the URL names; redirects are under the same rules.

        The timeout is that of connections and what they bring; looking up a host takes as long as
        the resolver of this machine waits, besides.
        """
        deadline = time.monotonic() + self._timeout_seconds
        host = None
        try:
            for _ in range(MAX_REDIRECTS + 1):
                parts = self._checked(url)
                host = _host(parts)
                with closing(self._open(parts, deadline)) as connection:
                    answer = _ask(connection, parts, deadline)
                    if answer.status not in REDIRECTS:
                        return _body(answer, host, budget)
                    url = urljoin(url, answer.headers.get("location", ""))
        except TimeoutError as error:
            raise MediaError(
                f"{host} did not answer in {self._timeout_seconds:g} seconds"
            ) from error
        except (OSError, HTTPException, ValueError) as error:  # of a host that is no name, too
            raise MediaError(f"{host} cannot be read: {one_line(error)}") from error
        raise MediaError(f"more than {MAX_REDIRECTS} redirects")

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        return ssl.create_default_context()

    def _checked(self, url: str) -> SplitResult:
        """Split a URL of an allowed host."""
        if not PRINTABLE.fullmatch(url):
            raise MediaError("a URL is printable ASCII; write other characters as %XX")
        try:
            parts = urlsplit(url)
            host, port = _host(parts), parts.port
        except ValueError as error:
            raise MediaError(f"no valid URL: {error}") from error
        if parts.scheme not in ("http", "https") or not host or port == 0:
            raise MediaError("no http or https URL of a host")
        if "@" in parts.netloc:
            raise MediaError("a URL of media has no user or password")
        if not any(_matches(host, domain) for domain in self._domains):
            raise MediaError(f"media may not come from {host} (--allowed-media-domains)")
        return parts

    def _open(self, parts: SplitResult, deadline: float) -> socket.socket:
        host, port = _host(parts), parts.port or (443 if parts.scheme == "https" else 80)
        addresses = self._resolve(host, port)
        if not addresses or not all(map(is_public, addresses)):
            raise MediaError(f"{host} has an address that is not public")
        failure: OSError | None = None
        for number, address in enumerate(addresses):
            try:
                share = _left(deadline) / (len(addresses) - number)
                connection = self._connect(address, port, share)
                break
            except OSError as error:
                failure = error
        else:
            raise failure or OSError("no address")
        if parts.scheme == "http":
            return connection
        try:
            connection.settimeout(_left(deadline))
            return self._tls.wrap_socket(connection, server_hostname=host)
        except BaseException:
            connection.close()
            raise


class _Arriving(io.RawIOBase):
    """What a connection brings until the deadline, however slowly it drips."""

    def __init__(self, connection: socket.socket, deadline: float) -> None:
        self._connection = connection
        self._deadline = deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._connection.settimeout(_left(self._deadline))
        return self._connection.recv_into(buffer)

    def makefile(self, mode: str) -> io.BufferedReader:
        """What HTTPResponse asks a socket for."""
        return io.BufferedReader(self)


def _host(parts: SplitResult) -> str:
    return (parts.hostname or "").rstrip(".")


def _matches(host: str, domain: str) -> bool:
    return host.endswith(domain[1:]) if domain.startswith("*.") else host == domain


def _left(deadline: float) -> float:
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise TimeoutError
    return seconds


def _ask(connection: socket.socket, parts: SplitResult, deadline: float) -> HTTPResponse:
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    connection.settimeout(_left(deadline))
    connection.sendall(
        f"GET {target} HTTP/1.1\r\nHost: {parts.netloc}\r\nUser-Agent: octavo/{__version__}\r\n"
        "Accept: */*\r\nAccept-Encoding: identity\r\nConnection: close\r\n\r\n".encode("ascii")
    )
    answer = HTTPResponse(_Arriving(connection, deadline), method="GET")  # type: ignore[arg-type]
    answer.begin()
    return answer


def _body(answer: HTTPResponse, host: str, budget: MediaBudget) -> bytes:
    """Read while the budget lasts."""
    if answer.status != 200:
        raise MediaError(f"{host} answers with status {answer.status}")
    if answer.headers.get("content-encoding", "identity").lower() != "identity":
        raise MediaError(f"{host} sends a compressed body, which was not asked for")
    expected = answer.length
    budget.check_encoded(expected or 0)
    pieces = []
    while piece := answer.read(PIECE):
        budget.add_encoded(len(piece))
        pieces.append(piece)
    data = b"".join(pieces)
    if expected is not None and len(data) < expected:
        raise MediaError(f"{host} sent {len(data):,} of {expected:,} bytes")
    return data
