"""The engine: messages in, planned steps to the executor, tokens out.

The step is asynchronous. ``step`` plans and launches one step, then waits for the oldest one under
way, so that the device runs while the host plans the next and tells clients of the last.
"""

from __future__ import annotations

import logging
import secrets
from collections import deque
from functools import partial
from typing import Any

import msgspec

from octavo.config import EngineConfig
from octavo.errors import ConfigError, EngineDeadError, ParameterError
from octavo.guided.guides import CompilingRequests, Guides
from octavo.guided.vocabulary import vocabulary_of
from octavo.messages import EngineReady, EngineRequest, PackedAdapter, StepOutputs
from octavo.model_folder import ModelFolder, open_model
from octavo.model_folder.tokenizer import eos_token_ids, load_tokenizer
from octavo.observability.engine_metrics import EngineMeter
from octavo.observability.usage_stats import record_start
from octavo.sampling.processors import StepFaults
from octavo.scheduling.guided import GuidedRows
from octavo.scheduling.record import StepRecord
from octavo.scheduling.results import StepResults
from octavo.scheduling.scheduler import Scheduler
from octavo.weights.identity import content_identity
from octavo_registry import EnginePlan, PluginHost
from octavo_registry.executor import Executor, ExecutorFacts, PendingStep
from octavo_registry.faults import FAILURES
from octavo_registry.guided import GuideVocabulary
from octavo_registry.kv_store import KVStore

log = logging.getLogger(__name__)

DEFAULT_EXECUTOR = "local"
PROGRESS_SECONDS = 1.0
IDLE_WAIT_SECONDS = 0.01
"""An engine that only waits for a guide, or a store, looks for requests again after it."""


class EngineCore:
    """One model on its workers. Not thread-safe: one thread calls everything."""

    def __init__(
        self, config: EngineConfig, host: PluginHost, *, store: KVStore | None = None
    ) -> None:
        """``store`` has keys and values beyond the pool, under digests seeded by the content."""
        self._host = host
        folder = open_model(config.model, host)
        folder.check_parallel(config.parallel)
        if store is not None and not config.cache.enable_prefix_caching:
            raise ConfigError("a KV store finds blocks by prefix; it needs enable_prefix_caching")
        name = config.parallel.executor or DEFAULT_EXECUTOR
        self._executor: Executor = host.executors.make(name, config, folder, host)
        facts: Any = self._executor.start()
        if not isinstance(facts, ExecutorFacts):
            what = TypeError(f"start returned {type(facts).__name__}, not ExecutorFacts")
            plugin = host.executors.info(name).plugin
            raise host.faults.failure(plugin, f"executor {name!r}, start", what)
        self._scheduler = Scheduler(
            config,
            facts.layout,
            facts.state,
            num_blocks=facts.num_blocks,
            num_swap_blocks=facts.num_swap_blocks,
            # Nobody else may know the digests, where nobody else is to find what they name.
            model_identity=secrets.token_hex(16)
            if store is None
            else content_identity(folder, host, config.model),
            store=store,
            vocab_size=folder.vocab_size,
            whole_media=folder.capabilities.media_attention == "bidirectional",
        )
        self._results = StepResults(
            self._scheduler,
            enable_prefix_caching=config.cache.enable_prefix_caching,
            faults=StepFaults(host, folder.implementation, config.logits_processors),
        )
        self._guided = GuidedRows(self._scheduler, self._results)
        self._compiling = CompilingRequests(
            Guides(host, partial(_vocabulary, config, folder, host))
        )
        self._meter = EngineMeter(facts.num_blocks, host.faults)
        self._depth = config.scheduler.async_depth
        self._under_way: deque[tuple[StepRecord, PendingStep]] = deque()
        self._awaiting: StepRecord | None = None
        """The newest step under way, if its tokens are to be sampled when their masks are known."""
        self._dead: str | None = None
        self.ready = EngineReady(
            max_model_len=facts.max_model_len,
            vocab_size=folder.vocab_size,
            num_blocks=facts.num_blocks,
            block_tokens=config.cache.block_size,
            max_num_seqs=facts.state.num_slots,
            max_num_batched_tokens=config.scheduler.max_num_batched_tokens,
            adapters=facts.adapters,
            masks_on_device=facts.masks_on_device,
        )
        record_start(architecture=folder.architecture, dtype=str(folder.dtype))
        host.notify(
            "engine_started",
            plan=EnginePlan(
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
        return self._scheduler.has_work or bool(self._compiling)

    def add(self, requests: list[EngineRequest]) -> None:
        """Queue requests; one that is refused ends with an error in the next step's outputs."""
        adapters = self._scheduler.adapters
        for request in requests:
            refusal = adapters.refusal(request.adapter)
            if refusal is not None:
                self._scheduler.refuse(request, refusal)
            elif request.guide is None:
                self._scheduler.add(request)
            else:
                adapters.begin(request.adapter, 1)
                self._compiling.add(request, request.guide)

    def abort(self, sequences: list[int]) -> None:
        """End sequences now and free what they hold."""
        for request in self._compiling.abort(sequences):
            self._scheduler.adapters.end(request.adapter)
        self._scheduler.abort(sequences)

    def add_adapter(self, adapter: PackedAdapter) -> None:
        """Let later requests name it; it goes to the device when one is to run."""
        self._scheduler.adapters.add(adapter)

    def remove_adapter(self, content_hash: str) -> None:
        """Take back one ``add_adapter``; requests that are there go on."""
        self._scheduler.adapters.remove(content_hash)

    def step(self) -> StepOutputs:
        """Launch the next step, if there is one, and return what the oldest under way gave.

        Returns at once with what is known while fewer than ``async_depth`` steps are under way.
        """
        if self._dead is not None:
            raise EngineDeadError(self._dead)
        if self._compiling:
            self._add_compiled()
        outputs = None if self._awaiting is None else self._sample_guided(self._awaiting)
        planned = None
        while self._awaiting is None and len(self._under_way) < self._depth:
            planned = self._scheduler.schedule()
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
        fetching = self._scheduler.fetching
        if fetching is not None and planned is None and not self._under_way:
            fetching.wait(IDLE_WAIT_SECONDS)
        has_room = planned is not None and len(self._under_way) < self._depth
        return self._results.take_events() if has_room or not self._under_way else self._collect()

    def _sample_guided(self, record: StepRecord) -> StepOutputs:
        """The newest step's masks follow from the tokens of the steps before it."""
        outputs = self._collect() if len(self._under_way) > 1 else self._results.take_events()
        if len(self._under_way) == 1:
            self._awaiting = None
            self._executor.mask(self._guided.masks(record, outputs))
        return outputs

    def _collect(self) -> StepOutputs:
        """What the oldest step gave; of one that takes long, now and then that it goes on."""
        record, pending = self._under_way[0]
        if not pending.ends_within(PROGRESS_SECONDS):
            return self._results.take_events()
        self._under_way.popleft()
        try:
            result = pending.result()
        except EngineDeadError as error:
            self._dead = str(error)
            raise
        except FAILURES as error:
            log.debug("step failed", exc_info=True)
            return self._results.fail(record, [r for r, _ in self._under_way], error)
        return self._results.apply(record, result)

    def _add_compiled(self) -> None:
        """Queue requests whose guides are there; with nothing else to do, wait for one a moment."""
        is_idle = not self._scheduler.has_work
        for request, guide in self._compiling.take(IDLE_WAIT_SECONDS if is_idle else 0.0):
            if isinstance(guide, Exception):
                self._scheduler.refuse(request, guide)
            else:
                self._scheduler.add(request, guide)
            self._scheduler.adapters.end(request.adapter)

    def use_idle_time(self) -> bool:
        """Prepare something for later steps; False if nothing is left to prepare."""
        return self._dead is None and self._executor.use_idle_time()

    def call(self, method: str) -> Any:
        """Run a utility between steps: "reset_prefix_cache", "stats" or "metrics"."""
        if method == "reset_prefix_cache":
            self._scheduler.placement.pool.forget_all()
            return True
        if method == "stats":
            return self.stats()
        if method == "metrics":
            return self._meter.report(self.stats())
        raise ConfigError(
            f"the engine has no utility {method!r}; there is: reset_prefix_cache, stats, metrics"
        )

    def stats(self) -> dict[str, int]:
        """Counts of the scheduler and the cache, now or since the start."""
        scheduler, placement = self._scheduler, self._scheduler.placement
        num_running = len(scheduler.running_order())
        return {
            "num_running": num_running,
            "num_waiting": len(scheduler.sequences) - num_running + self._compiling.num_sequences,
            "num_live_blocks": placement.pool.num_live,
            "num_cached_blocks": placement.pool.num_cached,
            "num_preemptions": placement.num_preemptions,
            "num_swaps": placement.num_swaps,
            "num_prefix_hit_tokens": placement.num_prefix_hit_tokens,
            "num_prefix_query_tokens": placement.num_prefix_query_tokens,
            "num_media_encoded": scheduler.media.num_encoded,
            "num_media_reused": scheduler.media.num_reused,
            **scheduler.adapters.stats(),
            **scheduler.automata.stats(),
        }

    def close(self) -> None:
        """End the workers; what is queued is dropped. Calling twice does nothing."""
        if self._dead is None:
            self._dead = "the engine is closed"
        self._under_way.clear()
        self._compiling.close()
        self._guided.close()
        self._executor.close()
        self._host.settle_events()


def _vocabulary(config: EngineConfig, folder: ModelFolder, host: PluginHost) -> GuideVocabulary:
    tokenizer = load_tokenizer(config.model, folder, host)
    if tokenizer is None:
        raise ParameterError("guided needs a tokenizer (skip_tokenizer_init is set)")
    return vocabulary_of(
        tokenizer,
        vocab_size=folder.vocab_size,
        stop_token_ids=eos_token_ids(folder, tokenizer),
    )
