"""/metrics."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.observability.metrics import CONTENT_TYPE
from octavo.server.context import ServerContext
from octavo.server.http.boundary import METRICS_PATH
from octavo.server.http.exchange import Exchange, Reply
from octavo.server.http.openapi import operation
from octavo_registry.routes import Endpoint


class MetricsRoutes:
    """Tells Prometheus what there is to count."""

    def __init__(self, server: ServerContext) -> None:
        self._server = server

    def endpoints(self) -> Sequence[Endpoint]:
        """Return the one endpoint."""
        described = operation("Show metrics for Prometheus", reply=str, content_type="text/plain")
        needs_key = not self._server.config.access.open_metrics
        return [
            self._server.endpoint(
                "GET", METRICS_PATH, self._metrics, described, authenticated=needs_key
            )
        ]

    async def _metrics(self, exchange: Exchange) -> Reply:
        text = await self._server.meter.text()
        return Reply(text.encode(), CONTENT_TYPE.encode())
