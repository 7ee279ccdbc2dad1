"""An executor whose ranks are threads of this process: what a model needs of several, on a CPU."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import torch

from octavo.config import EngineConfig
from octavo.execution.agreement import RankFacts, agree
from octavo.execution.worker import Worker
from octavo.model_folder import ModelFolder
from octavo.steps.plan import StepPlan, StepResult, TokenMasks
from octavo.steps.plan_codec import PlanDecoder, PlanEncoder
from octavo_plugins.executors.local.executor import _run_on_cpu, _to_host
from octavo_registry import LazyRegistry, PluginHost, hookimpl
from octavo_registry.executor import ExecutorFacts
from octavo_registry.ranks import Ranks
from small_models import RankCollectives, RankGroup

PEOPLE_WAIT_SECONDS = 60


class ThreadRanks:
    """As many ranks as the config's tensor_parallel_size; each takes the same plans, as frames."""

    def __init__(self, config: EngineConfig, folder: ModelFolder, host: PluginHost) -> None:
        self._config, self._folder = config, folder
        size = config.parallel.tensor_parallel_size
        group = RankGroup(size)
        ranks = [
            Ranks(tp_rank=rank, tp_size=size, collectives=RankCollectives(group, rank))
            for rank in range(size)
        ]
        self.workers = [Worker(config, folder, host, each) for each in ranks]
        self._threads = [ThreadPoolExecutor(1) for _ in ranks]

    def _on_all(self, call: Any) -> list[Future[Any]]:
        return [
            thread.submit(call, worker)
            for thread, worker in zip(self._threads, self.workers, strict=True)
        ]

    def start(self) -> ExecutorFacts:
        def measure(worker: Worker) -> RankFacts:
            torch.set_num_threads(1)
            return worker.measure()

        facts = [future.result() for future in self._on_all(measure)]
        agreed = agree(facts, self._config, max_model_len=self._folder.max_model_len)
        for future in self._on_all(lambda worker: worker.allocate(agreed)):
            future.result()
        self._encoder = PlanEncoder()
        self._decoders = {worker: PlanDecoder(agreed) for worker in self.workers}
        return agreed

    def submit(self, plan: StepPlan) -> StepOfAll:
        frames = [bytes(frame) for frame in self._encoder.encode(plan)]

        def run(worker: Worker) -> StepResult | None:
            own = [bytearray(frame) for frame in frames]
            return _run_on_cpu(worker.runner, self._decoders[worker].decode(own))

        self._newest = StepOfAll(self._on_all(run))
        return self._newest

    def mask(self, masks: TokenMasks) -> None:
        forward = self._newest.futures
        for future in forward:
            future.result()
        self._newest.futures = self._on_all(lambda worker: _to_host(worker.runner.sample(masks)))

    def use_idle_time(self) -> bool:
        return False

    def close(self) -> None:
        for thread in self._threads:
            thread.shutdown()


class StepOfAll:
    """A step on all ranks, which must sample the same tokens."""

    def __init__(self, futures: list[Future[Any]]) -> None:
        self.futures = futures

    def ends_within(self, seconds: float) -> bool:
        return True

    def result(self) -> StepResult:
        first, *others = [future.result(PEOPLE_WAIT_SECONDS) for future in self.futures]
        for other in others:
            assert np.array_equal(other.tokens_RK, first.tokens_RK)
        result: StepResult = first
        return result


class ThreadRanksPlugin:
    """Offers them as executor "threads"."""

    OCTAVO_API = "1"

    @hookimpl
    def register_executors(self, executors: LazyRegistry) -> None:
        executors.add("threads", "thread_ranks:ThreadRanks")
