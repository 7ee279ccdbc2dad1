"""HTTP routes that plugins add, in terms of ASGI, so that the contract names no HTTP library."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    from octavo_registry.host import PluginHost

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
    """Whether the server checks the API key before the app sees the request; with a pattern in its
    path it must."""
    operators_only: bool = False
    """Whether it is for who runs the server, as what changes it for all: with any key set, it needs
    one of the operator's."""
    operation: Mapping[str, Any] = field(default_factory=dict)
    """What the server's OpenAPI document says of it: an Operation object."""


class Server(Protocol):
    """What a route group finds around it."""

    @property
    def engine(self) -> Any:
        """The ``octavo.AsyncLLM`` that all groups share."""
        ...

    @property
    def host(self) -> PluginHost:
        """The plugins of this process."""
        ...

    @property
    def model_names(self) -> Sequence[str]:
        """Names under which requests may ask for the model; the first is the one to show."""
        ...


@runtime_checkable
class RouteGroup(Protocol):
    """Endpoints that belong together. Made once a server: ``Group(server)``."""

    def endpoints(self) -> Sequence[Endpoint]:
        """Return the group's endpoints; a path that is taken is an error at start-up."""
        ...
