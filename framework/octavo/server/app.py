"""The ASGI application: route groups behind the boundary."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from octavo.errors import ConfigError
from octavo.observability.tracing import App, make_tracer, with_trace_context
from octavo.server.context import ServerContext
from octavo.server.http.absent import why_absent
from octavo.server.http.body import ClientLeft
from octavo.server.http.boundary import IS_OPERATOR, ROUTE, Boundary, route_of
from octavo.server.http.docs_page import docs_page
from octavo.server.http.errors import HttpError, reply_to
from octavo.server.http.exchange import answered_as, send_error
from octavo.server.http.keys import NO_KEYS, Keys
from octavo.server.http.openapi import document
from octavo.server.http.plugin_loops import PluginLoop
from octavo.server.http.sites import SiteGuard
from octavo.server.metrics import HttpMeter
from octavo_registry import LazyRegistry, PluginHost
from octavo_registry.routes import Endpoint, RouteGroup

BUILT_IN: Final = {
    "adapters": "adapters:AdapterRoutes",
    "chat": "chat.route:ChatRoutes",
    "completions": "completions.route:CompletionRoutes",
    "health": "health:HealthRoutes",
    "info": "info:InfoRoutes",
    "invocations": "invocations:InvocationRoutes",
    "kept_responses": "responses.kept_route:KeptResponseRoutes",
    "messages": "messages.route:MessageRoutes",
    "metrics": "metrics:MetricsRoutes",
    "models": "models:ModelRoutes",
    "parsing": "parsing.route:ParsingRoutes",
    "responses": "responses.route:ResponseRoutes",
    "tokenize": "tokenize.route:TokenizeRoutes",
    "transcriptions": "transcriptions.route:TranscriptionRoutes",
}
"""The framework's own groups: module of ``octavo.server.apis`` and class."""
_CONTROL: Final = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")


def make_app(server: ServerContext, keys: Keys = NO_KEYS, *, on_one_loop: bool = False) -> App:
    """Put all groups of routes together; ``keys`` are those that clients must send.

    ``on_one_loop`` keeps routes of strangers on the caller's event loop, where it sees how they
    behave.
    """
    endpoints = _endpoints(server)
    described = document([e for _, e in endpoints], keys)
    api = FastAPI(
        title="Octavo",
        docs_url=None,  # its page, and the other one, load their scripts from a network
        redoc_url=None,
        redirect_slashes=False,  # a POST that is redirected loses its body in many clients
        openapi_url=None if server.config.serve.disable_fastapi_docs else "/openapi.json",
        root_path=server.config.listen.root_path,
        exception_handlers={404: _no_such_path, 405: _wrong_method},
    )
    api.openapi = lambda: described  # type: ignore[method-assign]
    if not server.config.serve.disable_fastapi_docs:
        page = HTMLResponse(docs_page(described))
        api.router.routes.append(Route("/docs", lambda request: page))
    by_path: dict[str, _Path] = {}
    plugins = set() if on_one_loop else {plugin for plugin, _ in endpoints}
    foreign = filter(server.host.is_foreign, plugins)
    loops = {plugin: PluginLoop(plugin, server.host) for plugin in foreign}
    for plugin, endpoint in endpoints:
        path = by_path.setdefault(endpoint.path, _Path(server.host))
        path.by_method[endpoint.method] = _Owned(endpoint, plugin, loops.get(plugin))
    for name, path in by_path.items():
        api.router.routes.append(Route(name, path, methods=list(path.by_method)))
    server.meter.http = HttpMeter(by_path)
    boundary = Boundary(
        api,
        server.gate,
        answered=server.meter.http.answered,
        access=server.config.access,
        limits=server.config.limits,
        serve=server.config.serve,
        keys=keys,
        sites=SiteGuard(
            server.config.access,
            is_local=server.is_local,
            has_keys=bool(keys.users),
            own_host=server.config.listen.host,
        ),
        open_endpoints=[(e.method, e.path) for _, e in endpoints if not e.authenticated],
        root_path=server.config.listen.root_path,
    )
    collector = server.config.serve.otlp_traces_endpoint
    if collector is None:
        return boundary
    server.engine.trace(make_tracer(collector, server.model_names[0]))
    return with_trace_context(boundary)


def add_built_in_routes(routes: LazyRegistry[RouteGroup]) -> None:
    """Add the framework's own groups beside those of plugins."""
    for name, target in BUILT_IN.items():
        routes.add(name, f"octavo.server.apis.{target}")


def _endpoints(server: ServerContext) -> list[tuple[str, Endpoint]]:
    """All groups' endpoints with the plugin that each comes from."""
    found: dict[tuple[str, str], tuple[str, Endpoint]] = {}
    for name in server.host.routes.names():
        plugin = server.host.routes.info(name).plugin
        group = server.host.routes.make(name, server)
        with server.host.routes.guard(name, f"endpoints of route group {name!r}"):
            endpoints = group.endpoints()
            _check_endpoints(endpoints)
        for endpoint in endpoints:
            place = (endpoint.method, endpoint.path)
            if place in found:
                raise ConfigError(
                    f"{endpoint.method} {endpoint.path} is given by the plugins "
                    f"{found[place][0]!r} and {plugin!r}; disable one with --disable-plugin"
                )
            found[place] = (plugin, endpoint)
    # A pattern must not take the requests of a path that is given as it stands.
    return sorted(found.values(), key=lambda each: "{" in each[1].path)


def _check_endpoints(given: object) -> None:
    if not isinstance(given, Sequence):
        raise TypeError(f"endpoints() returned {type(given).__name__}, not a list of Endpoint")
    for endpoint in given:
        if not isinstance(endpoint, Endpoint):
            raise TypeError(f"endpoints() returned a {type(endpoint).__name__} among Endpoints")
        if not endpoint.path.startswith("/") or not callable(endpoint.app):
            raise TypeError(f"the endpoint {endpoint.path!r} needs a path from / and an app")
        if not endpoint.authenticated and "{" in endpoint.path:
            raise TypeError(f"the endpoint {endpoint.path!r} is a pattern, so it needs the key")
        if not endpoint.authenticated and endpoint.operators_only:
            raise TypeError(f"the endpoint {endpoint.path!r} is the operator's, so it needs a key")


def _check_message(message: Message) -> None:
    """Raise before the server has begun to send what it cannot."""
    if message["type"] != "http.response.start":
        return
    status, headers = message["status"], message.get("headers", ())
    if not isinstance(status, int) or not 200 <= status <= 599:
        raise TypeError(f"the app's status is {status!r}")
    for name, value in headers:
        if not isinstance(name, bytes) or not isinstance(value, bytes) or _CONTROL.search(value):
            raise TypeError(f"the app's header {name!r} is not one of printable bytes")


class _Owned(NamedTuple):
    """An endpoint, the plugin that it is of, and the loop of that; None: the server's own."""

    endpoint: Endpoint
    plugin: str
    loop: PluginLoop | None


class _Path:
    """Endpoints by their methods, whose failures become answers and count as their plugins'.

    A HEAD is answered as the GET that it is.
    """

    def __init__(self, host: PluginHost) -> None:
        self.by_method: dict[str, _Owned] = {}
        self._host = host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        has_begun = False

        async def watched(message: Message) -> None:
            nonlocal has_begun
            if not has_begun:
                _check_message(message)
            await send(message)
            has_begun = True

        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        endpoint, plugin, loop = self.by_method[method]
        scope[ROUTE] = endpoint.path
        call = f"{endpoint.method} {endpoint.path}"
        try:
            if endpoint.operators_only and not scope.get(IS_OPERATOR):
                raise HttpError(
                    403,
                    "this is for who runs the server: it needs a key of --admin-key or "
                    "OCTAVO_ADMIN_KEY",
                    code="operator_key_needed",
                )
            with self._host.faults.guard(plugin, call, request=True):
                if loop is None:
                    await endpoint.app(scope, receive, watched)
                else:
                    await loop.run(endpoint.app, scope, receive, watched, call)
                if not has_begun:
                    raise TypeError("the app has sent no answer")
        except ClientLeft:
            return
        except Exception as error:
            if has_begun:
                raise  # closing the connection is all that is left
            await send_error(send, reply_to(error, answered_as(scope)))


async def _no_such_path(request: Request, error: Any) -> Response:
    path = route_of(request.scope["path"], request.scope.get("root_path", ""))
    return _response(request, HttpError(404, f"there is no such path; {why_absent(path)}"))


async def _wrong_method(request: Request, error: Any) -> Response:
    known = (getattr(error, "headers", None) or {}).get("Allow", "another method")
    allowed = ", ".join(sorted(known.split(", ")))  # Starlette's order is any
    response = _response(request, HttpError(405, f"this path takes {allowed}"))
    response.headers["allow"] = allowed
    return response


def _response(request: Request, error: HttpError) -> Response:
    reply = reply_to(error, request.scope["path"])
    return Response(reply.json(), reply.status, media_type="application/json")
