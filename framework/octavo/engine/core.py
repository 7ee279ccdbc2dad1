"""The engine: messages in, planned steps to the executor, tokens out.

The step is asynchronous. ``step`` plans and launches one step, then waits for the oldest one under
way, so that the device runs while the host plans the next and tells clients of the last.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import Any

import msgspec

from octavo.config import EngineConfig
from octavo.engine.token_work import TokenWork
from octavo.engine.work import Work
from octavo.errors import ConfigError, EngineDeadError
from octavo.messages import EngineReady, EngineRequest, PackedAdapter, StepOutputs
from octavo.model_folder import open_model
from octavo.observability.engine_metrics import EngineMeter
from octavo.observability.usage_stats import record_start
from octavo.pooled_calls import PooledCall
from octavo.sampling.processors import StepFaults
from octavo.scheduling.pooled_work import PooledWork
from octavo.scheduling.scheduler import Scheduler
from octavo_registry import EngineFacts, PluginHost
from octavo_registry.executor import Executor, ExecutorFacts, PendingStep
from octavo_registry.faults import FAILURES
from octavo_registry.kv_store import KVStore

log = logging.getLogger(__name__)

DEFAULT_EXECUTOR = "local"
RANKS_EXECUTOR = "ranks"
PROGRESS_SECONDS = 1.0


class EngineCore:
    """One model on its workers. Not thread-safe: one thread calls everything."""

    def __init__(
        self, config: EngineConfig, host: PluginHost, *, store: KVStore | None = None
    ) -> None:
        """``store`` has keys and values beyond the pool, under digests seeded by the content."""
        self._host = host
        folder = open_model(config.model, host)
        parallel = config.parallel
        folder.check_parallel(parallel)
        if store is not None and not config.cache.enable_prefix_caching:
            raise ConfigError("a KV store finds blocks by prefix; it needs enable_prefix_caching")
        default = DEFAULT_EXECUTOR if parallel.num_devices == 1 else RANKS_EXECUTOR
        name = parallel.executor or default
        self._executor: Executor = host.executors.make(name, config, folder, host)
        facts: Any = self._executor.start()
        if not isinstance(facts, ExecutorFacts):
            what = TypeError(f"start returned {type(facts).__name__}, not ExecutorFacts")
            plugin = host.executors.info(name).plugin
            raise host.faults.failure(plugin, f"executor {name!r}, start", what)
        self._tokens: TokenWork | None = None
        self._work: Work[Any, Any]
        if facts.max_step_tokens is None:
            self._work = self._tokens = TokenWork(config, folder, host, facts, store)
        else:
            self._work = PooledWork(
                max_step_tokens=facts.max_step_tokens,
                max_model_len=facts.max_model_len,
                vocab_size=folder.vocab_size,
                faults=StepFaults(host, folder.implementation, ()),
            )
        self._meter = EngineMeter(facts.num_blocks, host.faults)
        self._depth = config.scheduler.async_depth
        self._under_way: deque[tuple[Any, PendingStep]] = deque()
        """Each step's record and what will be its result."""
        self._awaiting: Any = None
        """The newest step under way, if its tokens are to be sampled when their masks are known."""
        self._dead: str | None = None
        self.ready = EngineReady(
            max_model_len=facts.max_model_len,
            vocab_size=folder.vocab_size,
            num_blocks=facts.num_blocks,
            block_tokens=facts.layout.block_tokens,
            max_num_seqs=0 if facts.state is None else facts.state.num_slots,
            max_num_batched_tokens=config.scheduler.max_num_batched_tokens,
            adapters=facts.adapters,
            masks_on_device=facts.masks_on_device,
        )
        record_start(architecture=folder.architecture, dtype=str(folder.dtype))
        host.notify(
            "engine_started",
            facts=EngineFacts(
                model=config.model.model,
                architecture=folder.architecture,
                dtype=folder.dtype,
                **{
                    name: value
                    for name, value in msgspec.structs.asdict(self.ready).items()
                    if name not in ("adapters", "masks_on_device")
                },
            ),
        )

    @property
    def has_work(self) -> bool:
        """Something is waiting, running or under way."""
        return self._work.has_work

    def add(self, requests: list[EngineRequest]) -> None:
        """Queue requests; one that is refused ends with an error in the next step's outputs."""
        self._work.add(requests)

    def add_call(self, call: PooledCall) -> None:
        """Queue a call's texts, or more of them."""
        self._work.add([call])

    def abort(self, ids: list[int]) -> None:
        """End sequences, or calls, now and free what they hold."""
        self._work.abort(ids)

    def add_adapter(self, adapter: PackedAdapter) -> None:
        """Let later requests name it; it goes to the device when one is to run."""
        self._scheduler.adapters.add(adapter)

    def remove_adapter(self, content_hash: str) -> None:
        """Take back one ``add_adapter``; requests that are there go on."""
        self._scheduler.adapters.remove(content_hash)

    @property
    def _scheduler(self) -> Scheduler:
        if self._tokens is None:
            raise ConfigError("this engine keeps nothing between steps: it reads whole texts")
        return self._tokens.scheduler

    def step(self) -> StepOutputs:
        """Launch the next step, if there is one, and return what the oldest under way gave.

        Returns at once with what is known while fewer than ``async_depth`` steps are under way.
        """
        if self._dead is not None:
            raise EngineDeadError(self._dead)
        outputs = None if self._awaiting is None else self._sample_guided(self._awaiting)
        planned = None
        while self._awaiting is None and len(self._under_way) < self._depth:
            planned = self._work.plan()
            if planned is None:
                break
            plan, record = planned
            self._meter.step(plan.num_tokens)
            self._under_way.append((record, self._executor.submit(plan)))
            if plan.awaits_masks:
                self._awaiting = record
            if outputs is not None or not plan.awaits_masks:
                break
            # The step behind it is launched at once, too: its outputs are read while that runs.
            outputs = self._sample_guided(record)
        if outputs is not None:
            return outputs
        has_room = planned is not None and len(self._under_way) < self._depth
        return self._work.take_events() if has_room or not self._under_way else self._collect()

    def _sample_guided(self, record: Any) -> StepOutputs:
        """The newest step's masks follow from the tokens of the steps before it."""
        outputs = self._collect() if len(self._under_way) > 1 else self._work.take_events()
        if len(self._under_way) == 1:
            self._awaiting = None
            self._executor.mask(self._work.masks(record, outputs))
        return outputs

    def _collect(self) -> StepOutputs:
        """What the oldest step gave; of one that takes long, now and then that it goes on."""
        record, pending = self._under_way[0]
        if not pending.ends_within(PROGRESS_SECONDS):
            return self._work.take_events()
        self._under_way.popleft()
        try:
            result = pending.result()
        except EngineDeadError as error:
            self._dead = str(error)
            raise
        except FAILURES as error:
            log.debug("step failed", exc_info=True)
            return self._work.fail(record, [r for r, _ in self._under_way], error)
        return self._work.apply(record, result)

    def use_idle_time(self) -> bool:
        """Prepare something for later steps; False if nothing is left to prepare."""
        return self._dead is None and self._executor.use_idle_time()

    def call(self, method: str) -> Any:
        """Run a utility between steps: "reset_prefix_cache", "stats" or "metrics"."""
        if method == "reset_prefix_cache":
            if self._tokens is not None:
                self._tokens.scheduler.placement.forget_prefixes()
            return True
        if method == "stats":
            return self._work.stats()
        if method == "metrics":
            return self._meter.report(self._work.stats())
        raise ConfigError(
            f"the engine has no utility {method!r}; there is: reset_prefix_cache, stats, metrics"
        )

    def stats(self) -> dict[str, int]:
        """Counts of the scheduler and the cache, now or since the start."""
        return self._work.stats()

    def close(self) -> None:
        """End the workers; what is queued is dropped. Calling twice does nothing."""
        if self._dead is None:
            self._dead = "the engine is closed"
        self._under_way.clear()
        self._work.close()
        self._executor.close()
        self._host.settle_events()
