"""Which web pages may ask a server that asks for no key.

A browser sends what any page tells it to from within this machine: to the server's address, or to
a name of the page's own that leads there meanwhile (DNS rebinding).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from octavo.config.server import AccessConfig
from octavo.server.http.errors import HttpError
from octavo.server.http.head import host_of
from octavo.server.http.listening import is_loopback
from octavo.wording import shown

ANY: Final = "*"


class SiteGuard:
    """Lets requests to hosts that are allowed pass, and of pages from origins that are."""

    def __init__(
        self, access: AccessConfig, *, is_local: bool, has_keys: bool, own_host: str = ""
    ) -> None:
        """``is_local``: the server listens at a loopback address, as ``own_host`` if it is a name.

        With keys no page can ask, as it has none; without, and not local, any host may be a name
        of the server, and only forms are looked at, which a page may send to it unasked. Hosts that
        are named are the only ones in both cases.
        """
        self._hosts = {host.lower() for host in (*access.allowed_hosts, own_host) if host}
        self._origins = frozenset(access.allowed_origins)
        self._checks_host = bool(access.allowed_hosts) or (is_local and not has_keys)
        self._has_keys = has_keys

    def check(self, headers: Mapping[bytes, bytes]) -> None:
        """Raise a 403 that names the flag by which it would be allowed."""
        checks_origin = not self._has_keys and (self._checks_host or _is_form(headers))
        if not self._checks_host and not checks_origin:
            return
        given = headers.get(b"host")
        host = None if given is None else (host_of(given) or "").lower()
        # No browser speaks HTTP/1.0, which need not name a host.
        if self._checks_host and host is not None and not self._is_host(host):
            raise HttpError(
                403,
                f"this server does not answer as the host {shown(host)}; its operator may allow it "
                f"with --allowed-hosts, or have clients send a key (--api-key)",
                code="host_not_allowed",
            )
        if checks_origin and (site := self._strange_site(headers, host)) is not None:
            raise HttpError(
                403,
                f"this server does not answer to pages of {site}; its operator may allow them with "
                "--allowed-origins, or have clients send a key (--api-key)",
                code="origin_not_allowed",
            )

    def _strange_site(self, headers: Mapping[bytes, bytes], asked: str | None) -> str | None:
        """Where a request comes from that a page of no allowed origin has made.

        Pages of the host that is asked are allowed as it is.
        """
        if ANY in self._origins:
            return None
        given = headers.get(b"origin")
        if given is None:
            # With a page's scripts, images and frames browsers only say that it is another's. What
            # becomes a page of its own is a link that somebody has followed.
            is_strange = headers.get(b"sec-fetch-site") == b"cross-site"
            is_link = headers.get(b"sec-fetch-dest") == b"document"
            return "other sites" if is_strange and not is_link else None
        origin = given.decode("latin-1")
        scheme, _, rest = given.partition(b"://")
        host = (host_of(rest) or "").lower() if scheme in (b"http", b"https") else ""
        if origin in self._origins or (host and (host == asked or self._is_own(host))):
            return None
        return f"the origin {shown(origin)}"

    def _is_host(self, host: str) -> bool:
        return ANY in self._hosts or self._is_own(host)

    def _is_own(self, host: str) -> bool:
        return host in self._hosts or is_loopback(host)


def _is_form(headers: Mapping[bytes, bytes]) -> bool:
    return headers.get(b"content-type", b"").lower().startswith(b"multipart/")
