"""Requests that are continued token by token."""

from __future__ import annotations

import secrets
from functools import partial

from octavo.config import EngineConfig
from octavo.errors import ParameterError
from octavo.guided.guides import CompilingRequests, Guides
from octavo.guided.vocabulary import vocabulary_of
from octavo.messages import EngineRequest
from octavo.model_folder import ModelFolder
from octavo.model_folder.tokenizer import eos_token_ids, load_tokenizer
from octavo.sampling.processors import StepFaults
from octavo.scheduling.guided import GuidedRows
from octavo.scheduling.record import StepRecord
from octavo.scheduling.results import StepResults
from octavo.scheduling.scheduler import Scheduler
from octavo.steps.plan import StepPlan
from octavo.weights.identity import content_identity
from octavo_registry import PluginHost
from octavo_registry.executor import ExecutorFacts
from octavo_registry.guided import GuideVocabulary
from octavo_registry.kv_store import KVStore

IDLE_WAIT_SECONDS = 0.01
"""An engine that only waits for a guide, or a store, looks for requests again after it."""


class TokenWork:
    """The scheduler with what its results mean, and requests that wait for their guides."""

    def __init__(
        self,
        config: EngineConfig,
        folder: ModelFolder,
        host: PluginHost,
        facts: ExecutorFacts,
        store: KVStore | None,
    ) -> None:
        self.scheduler = Scheduler(
            config,
            facts.layout,
            facts.state,
            num_blocks=facts.num_blocks,
            num_swap_blocks=facts.num_swap_blocks,
            num_lines=facts.num_lines,
            num_swap_lines=facts.num_swap_lines,
            # Nobody else may know the digests, where nobody else is to find what they name.
            model_identity=secrets.token_hex(16)
            if store is None
            else content_identity(folder, host, config.model),
            store=store,
            vocab_size=folder.vocab_size,
            whole_media=folder.capabilities.media_attention == "bidirectional",
        )
        self._results = StepResults(
            self.scheduler,
            enable_prefix_caching=config.cache.enable_prefix_caching,
            faults=StepFaults(host, folder.implementation, config.logits_processors),
        )
        self._guided = GuidedRows(self.scheduler, self._results)
        self._compiling = CompilingRequests(
            Guides(host, partial(_vocabulary, config, folder, host))
        )
        self.masks = self._guided.masks
        self.apply, self.fail = self._results.apply, self._results.fail
        self.take_events = self._results.take_events

    @property
    def has_work(self) -> bool:
        """See ``Work``, as for all methods here."""
        return self.scheduler.has_work or bool(self._compiling)

    def add(self, requests: list[EngineRequest]) -> None:
        """Queue them, those with a guide when that is compiled."""
        adapters = self.scheduler.adapters
        for request in requests:
            refusal = adapters.refusal(request.adapter)
            if refusal is not None:
                self.scheduler.refuse(request, refusal)
            elif request.guide is None:
                self.scheduler.add(request)
            else:
                adapters.begin(request.adapter, 1)
                self._compiling.add(request, request.guide)

    def abort(self, ids: list[int]) -> None:
        """End these sequences."""
        for request in self._compiling.abort(ids):
            self.scheduler.adapters.end(request.adapter)
        self.scheduler.abort(ids)

    def plan(self) -> tuple[StepPlan, StepRecord] | None:
        """Plan a step; with nothing else to do, wait a moment for a guide or a store."""
        if self._compiling:
            self._add_compiled()
        planned = self.scheduler.schedule()
        fetching = self.scheduler.fetching
        if planned is None and fetching is not None and not self.scheduler.num_under_way:
            fetching.wait(IDLE_WAIT_SECONDS)
        return planned

    def _add_compiled(self) -> None:
        """Queue requests whose guides are there."""
        is_idle = not self.scheduler.has_work
        for request, guide in self._compiling.take(IDLE_WAIT_SECONDS if is_idle else 0.0):
            if isinstance(guide, Exception):
                self.scheduler.refuse(request, guide)
            else:
                self.scheduler.add(request, guide)
            self.scheduler.adapters.end(request.adapter)

    def stats(self) -> dict[str, int]:
        """Counts of the scheduler and the cache."""
        scheduler, placement = self.scheduler, self.scheduler.placement
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
            "num_media_encoded": scheduler.media.pool.num_loads,
            "num_media_reused": scheduler.media.num_reused,
            "num_adapters": len(scheduler.adapters),
            "num_device_adapters": len(scheduler.adapters.pool),
            "num_adapter_loads": scheduler.adapters.pool.num_loads,
            "num_device_automata": len(scheduler.automata),
            "num_automaton_loads": scheduler.automata.num_loads,
        }

    def close(self) -> None:
        """End guides' processes and threads."""
        self._compiling.close()
        self._guided.close()


def _vocabulary(config: EngineConfig, folder: ModelFolder, host: PluginHost) -> GuideVocabulary:
    tokenizer = load_tokenizer(config.model, folder, host)
    if tokenizer is None:
        raise ParameterError("guided needs a tokenizer (skip_tokenizer_init is set)")
    return vocabulary_of(
        tokenizer,
        vocab_size=folder.vocab_size,
        stop_token_ids=eos_token_ids(folder, tokenizer),
    )
