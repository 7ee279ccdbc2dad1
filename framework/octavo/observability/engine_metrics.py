"""What the engine itself counts; it makes metrics of it when somebody asks."""

from __future__ import annotations

import os
from typing import Any

import msgspec

from octavo.observability.metrics import Histogram, MetricValues, gauge, total
from octavo.observability.request_metrics import STEP_TOKENS
from octavo_registry.faults import Faults


class EngineReport(msgspec.Struct, frozen=True):
    """An engine's metrics, and those of the plugins in its process."""

    pid: int
    engine: list[MetricValues]
    plugins: list[MetricValues]

    @property
    def is_elsewhere(self) -> bool:
        """Whether the engine's plugins are not those of this process."""
        return self.pid != os.getpid()


class EngineMeter:
    """Counts steps; everything else is kept by the scheduler anyway."""

    def __init__(self, num_blocks: int, faults: Faults) -> None:
        self._num_blocks = num_blocks
        self._faults = faults
        self._step_tokens = Histogram(
            "iteration_tokens_total", "Tokens that a step of the engine computed.", STEP_TOKENS
        )

    def step(self, num_tokens: int) -> None:
        """A step was launched."""
        self._step_tokens.observe(num_tokens)

    def report(self, stats: dict[str, int]) -> EngineReport:
        """Return the metrics; ``stats`` are ``EngineCore.stats()``."""
        metrics = [
            gauge("num_requests_running", "Sequences that have a slot.", stats["num_running"]),
            gauge("num_requests_waiting", "Sequences that wait for one.", stats["num_waiting"]),
            gauge(
                "kv_cache_usage_perc",
                "Part of the KV cache's blocks that is in use; 1 is all.",
                stats.get("num_live_blocks", 0) / max(self._num_blocks, 1),
            ),
            _total("prefix_cache_queries_total", "Tokens looked up in the prefix cache.",
                   stats.get("num_prefix_query_tokens", 0)),
            _total("prefix_cache_hits_total", "Tokens of these that were there.",
                   stats.get("num_prefix_hit_tokens", 0)),
            _total("num_preemptions_total", "Times that a sequence lost its slot.",
                   stats.get("num_preemptions", 0)),
            _total("num_swaps_total", "Preemptions that kept the blocks in the host's memory.",
                   stats.get("num_swaps", 0)),
            gauge("num_adapters_on_device", "LoRA adapters in the device's pool.",
                  stats.get("num_device_adapters", 0)),
            _total("adapter_loads_total", "Times that one was copied there.",
                   stats.get("num_adapter_loads", 0)),
            self._step_tokens.read(),
        ]  # fmt: skip
        return EngineReport(os.getpid(), metrics, plugin_metrics(self._faults))


def plugin_metrics(faults: Faults) -> list[MetricValues]:
    """Return calls, failures and time by plugin, of one process."""
    uses = faults.uses
    return [
        total("plugin_calls_total", "Guarded calls of a plugin.",
              {name: use.calls for name, use in uses.items()}, label="plugin"),
        total("plugin_failures_total", "Calls of these that failed by the plugin's fault.",
              {name: use.failures for name, use in uses.items()}, label="plugin"),
        total("plugin_seconds_total", "Time in these calls; those of routes wait for tokens.",
              {name: use.seconds for name, use in uses.items()}, label="plugin"),
        total("plugin_dropped_events_total", "Events that a plugin was too slow to hear of.",
              {name: use.dropped_events for name, use in uses.items()}, label="plugin"),
    ]  # fmt: skip


def read_report(value: Any) -> EngineReport:
    """Read a report as it comes from the engine's process, or from this one."""
    return msgspec.convert(value, EngineReport)


def _total(name: str, help: str, value: float) -> MetricValues:
    return total(name, help, {"": value})
