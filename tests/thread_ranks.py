"""An executor whose ranks are threads of this process: what a model needs of several, on a CPU."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from octavo.config import EngineConfig
from octavo.execution.agreement import RankFacts, agree
from octavo.execution.decode_graphs import StepFunction
from octavo.execution.reading import read_result
from octavo.execution.recordings import Recordings
from octavo.execution.worker import Worker
from octavo.model_folder import ModelFolder
from octavo.steps.plan import StepPlan, StepResult, TokenMasks
from octavo.steps.plan_codec import PlanDecoder, PlanEncoder
from octavo.steps.recording import Recording
from octavo_plugins.executors.local.executor import _run_on_cpu
from octavo_registry import LazyRegistry, PluginHost, hookimpl
from octavo_registry.executor import ExecutorFacts
from octavo_registry.ranks import Ranks
from small_models import RankCollectives, RankGroup

PEOPLE_WAIT_SECONDS = 60


class ThreadRanks:
    """As many ranks as the config's tensor_parallel_size; each takes the same plans, as frames."""

    records = False

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
        self._recordings = None
        if self.records:
            for worker in self.workers:
                most_rows = 3 if worker is self.workers[-1] and len(self.workers) > 1 else 1000
                worker.runner._graphs = CpuGraphs(agreed.state.padding_slot, most_rows)
            self._recordings = Recordings(
                self._prepare,
                num_slots=agreed.state.num_slots,
                has_adapters=agreed.adapters is not None,
                has_processors=bool(self._config.logits_processors),
            )
            self._recordings.warm_up()
        self._encoder = PlanEncoder()
        self._decoders = {worker: PlanDecoder(agreed) for worker in self.workers}
        return agreed

    def _prepare(self, recording: Recording) -> bool:
        prepared = self._on_all(lambda worker: worker.runner.prepare(recording))
        return min([future.result() for future in prepared])

    def submit(self, plan: StepPlan) -> StepOfAll:
        lacking = None if self._recordings is None else self._recordings.name(plan)
        frames = [bytes(frame) for frame in self._encoder.encode(plan)]

        def run(worker: Worker) -> StepResult | None:
            own = [bytearray(frame) for frame in frames]
            return _run_on_cpu(worker.runner, self._decoders[worker].decode(own))

        self._newest = StepOfAll(self._on_all(run))
        if self._recordings is not None and lacking is not None:
            self._recordings.prepare(lacking)
        return self._newest

    def mask(self, masks: TokenMasks) -> None:
        forward = self._newest.futures
        for future in forward:
            future.result()
        self._newest.futures = self._on_all(lambda worker: read_result(worker.runner.sample(masks)))

    def use_idle_time(self) -> bool:
        return self._recordings is not None and self._recordings.prepare_another()

    def close(self) -> None:
        for thread in self._threads:
            thread.shutdown()


class RecordingRanks(ThreadRanks):
    """Ranks that run recorded steps; the last of several has room for those of up to 3 rows."""

    records = True


class CpuGraphs:
    """In the place of CUDA graphs: what was recorded is called again, what was not is an error."""

    def __init__(self, padding_slot: int, most_rows: int) -> None:
        self._padding_slot, self._most_rows = padding_slot, most_rows
        self._recorded: dict[tuple[str, int], StepFunction] = {}
        self.ran: list[tuple[str, int]] = []

    def place(self, slots: NDArray[np.integer], size: int, first_step: int) -> Tensor:
        slots_R = torch.full((size,), self._padding_slot, dtype=torch.int32)
        slots_R[: len(slots)] = torch.from_numpy(slots.astype(np.int32))
        return slots_R

    def run(self, slots_R: Tensor, name: str, step: StepFunction) -> Tensor:
        self.ran.append((name, len(slots_R)))
        return self._recorded[self.ran[-1]](slots_R)

    def prepare(self, size: int, name: str, step: StepFunction) -> bool:
        step(torch.full((size,), self._padding_slot, dtype=torch.int32))
        if size > self._most_rows:
            return False
        self._recorded[name, size] = step
        return True


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
    """Offers them as executors "threads" and "recording threads"."""

    OCTAVO_API = "1"

    @hookimpl
    def register_executors(self, executors: LazyRegistry) -> None:
        executors.add("threads", "thread_ranks:ThreadRanks")
        executors.add("recording threads", "thread_ranks:RecordingRanks")
