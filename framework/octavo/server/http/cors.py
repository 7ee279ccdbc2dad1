"""Which pages of other origins may ask: headers that browsers look at."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any, Final

from octavo.config.server import AccessConfig

PREFLIGHT_SECONDS: Final = 600
_EXPOSED: Final = (b"access-control-expose-headers", b"x-request-id, retry-after")
Headers = list[tuple[bytes, bytes]]


def cors_headers(request: Mapping[bytes, bytes], access: AccessConfig) -> Headers:
    """What every answer to this request says; nothing unless its origin is allowed."""
    origin = request.get(b"origin")
    if origin is None or not access.allowed_origins:
        return []
    if "*" in access.allowed_origins:
        return [(b"access-control-allow-origin", b"*"), _EXPOSED]
    if origin.decode("latin-1") not in access.allowed_origins:
        return []
    headers = [(b"access-control-allow-origin", origin), (b"vary", b"Origin"), _EXPOSED]
    if access.allow_credentials:
        headers.append((b"access-control-allow-credentials", b"true"))
    return headers


def is_preflight(scope: MutableMapping[str, Any]) -> bool:
    """Whether a browser asks if it may ask; it sends no key then."""
    names = {name for name, _ in scope["headers"]}
    return scope["method"] == "OPTIONS" and b"access-control-request-method" in names


def preflight_headers(scope: MutableMapping[str, Any], access: AccessConfig) -> Headers:
    """What a page of an allowed origin may send; where all headers may be, those it asks for."""
    names = ", ".join(access.allowed_headers).encode()
    if "*" in access.allowed_headers:
        names = dict(scope["headers"]).get(b"access-control-request-headers", b"*")
    return [
        (b"access-control-allow-methods", ", ".join(access.allowed_methods).encode()),
        (b"access-control-allow-headers", names),
        (b"access-control-max-age", str(PREFLIGHT_SECONDS).encode()),
    ]
