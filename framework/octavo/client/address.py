"""Where a server is, and what each request to it carries."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from urllib.parse import urlsplit

from octavo.environment import API_KEY
from octavo.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """A server's place in the network, and the key that it asks for."""

    scheme: str
    host: str
    port: int
    path: str
    """What stands before ``/v1/...``; without a slash at its end."""
    api_key: str | None = None

    def headers(self) -> dict[str, str]:
        """What every request carries."""
        headers = {"accept": "text/event-stream, application/json"}
        if self.api_key is not None:
            headers["authorization"] = f"Bearer {self.api_key}"
        return headers

    def ssl_context(self) -> ssl.SSLContext | None:
        """What https needs; None for http."""
        return ssl.create_default_context() if self.scheme == "https" else None

    @property
    def authority(self) -> str:
        """Host and port, as a Host header names them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}{self.path}"


def parse_address(url: str, api_key: str | None = None) -> Address:
    """Read ``http://host:8000``, with or without ``/v1`` at its end.

    Without ``api_key`` the key is that of the environment's OCTAVO_API_KEY, if there is one.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"url={url!r}: {error}") from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"url={url!r} must have the form http://host:8000 or https://host")
    if parts.query or parts.fragment or parts.username:
        raise ConfigError(f"url={url!r} must be scheme, host, port and path; keys go to --api-key")
    key = api_key if api_key is not None else API_KEY.text()
    if key is not None and not (key.isascii() and key.isprintable()):
        raise ConfigError("the API key must be printable ASCII")
    return Address(
        scheme=parts.scheme,
        host=parts.hostname,
        port=port or (443 if parts.scheme == "https" else 80),
        path=parts.path.rstrip("/").removesuffix("/v1"),
        api_key=key,
    )
