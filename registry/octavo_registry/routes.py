"""HTTP routes that plugins add, in terms of ASGI, so that the contract names no HTTP library."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

Message = MutableMapping[str, Any]
AsgiApp = Callable[
    [Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]],
    Awaitable[None],
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One method and path; ``{name}`` in the path arrives in ``scope["path_params"]``."""

    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
    path: str
    app: AsgiApp
    authenticated: bool = True
    """Whether the server checks the API key before the app sees the request."""


@runtime_checkable
class RouteGroup(Protocol):
    """Endpoints that belong together. Made once a server: ``Group(engine, host)``.

    ``engine`` is the server's ``octavo.AsyncLLM``.
    """

    def endpoints(self) -> Sequence[Endpoint]:
        """Return the group's endpoints; a path that is taken is an error at start-up."""
        ...
