"""Steps of several ranks of one host: each has the same plan, and rank 0 says what was sampled.

A step that raises on one rank is aborted on all, and costs that step. A rank that ends ends the
engine.
"""

from __future__ import annotations

import logging
import mmap
import tempfile
import weakref
from collections import deque
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import IO, Any, TypeVar

from octavo.config import EngineConfig
from octavo.errors import ConfigError, EngineDeadError, error_class
from octavo.execution.agreement import agree
from octavo.execution.worker import choose_device
from octavo.model_folder import ModelFolder
from octavo.steps.plan import StepPlan, StepResult, TokenMasks
from octavo.steps.plan_codec import PlanEncoder
from octavo.worker.host_collectives import HostCollectives, shared_bytes
from octavo.worker.wire import (
    AllocateRank,
    FromRank,
    MaskStep,
    RankFailed,
    RankMeasured,
    RankReady,
    ResetRank,
    RunPlan,
    StartRank,
    StepRan,
    ToRank,
)
from octavo_plugins.executors.ranks.process import Arrived, RankProcess
from octavo_registry import PluginHost
from octavo_registry.executor import ExecutorFacts, PendingStep
from octavo_registry.ranks import Ranks

T = TypeVar("T")
MEMORY_FOLDER = Path("/dev/shm")


class RanksExecutor:
    """Tensor parallel ranks on one host's CPUs."""

    def __init__(self, config: EngineConfig, folder: ModelFolder, host: PluginHost) -> None:
        self.size = config.parallel.tensor_parallel_size
        if config.parallel.pipeline_parallel_size > 1:
            raise ConfigError(
                f"executor 'ranks' runs no pipelines yet; set pipeline_parallel_size to 1, not "
                f"{config.parallel.pipeline_parallel_size}"
            )
        if choose_device(config.model.device).type != "cpu":
            raise ConfigError(
                "executor 'ranks' runs on CPUs alone yet, and several GPUs are not available; set "
                "device='cpu', or leave out the executor and set tensor_parallel_size to 1"
            )
        if folder.pooling is not None:
            raise ConfigError("executor 'ranks' embeds no texts yet; leave out the executor")
        if config.lora.enable_lora and self.size > 1:
            raise ConfigError("enable_lora: adapters are for one device yet, not for several ranks")
        self._config, self._folder, self._manifest = config, folder, host.manifest()
        self._ranks: list[RankProcess] = []
        weakref.finalize(self, _end, self._ranks)  # where nobody calls close()
        self._arrived: SimpleQueue[Arrived] = SimpleQueue()
        self._memory: IO[bytes] | None = None
        self._under_way: deque[_Step] = deque()
        self._awaiting: _Step | None = None
        self._encoder = PlanEncoder()
        self._has_failed = False
        """Whether a step has raised since ranks were reset."""

    def start(self) -> ExecutorFacts:
        """Start the ranks, which load side by side, and let them allocate what they agree on."""
        folder = MEMORY_FOLDER if MEMORY_FOLDER.is_dir() else None
        self._memory = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
        self._memory.truncate(shared_bytes(self.size))
        # What ranks have begun tells whether a step goes on.
        shared = mmap.mmap(self._memory.fileno(), 0)
        self._collectives = HostCollectives(shared, 0, self.size)
        try:
            for number in range(self.size):
                self._ranks.append(RankProcess(number, self._memory.fileno(), self._arrived))
            level = logging.getLogger().getEffectiveLevel()
            for number, rank in enumerate(self._ranks):
                rank.send(StartRank(self._config, self._manifest, number, self.size, level))
            measured = self._answers(RankMeasured)
            agreed = agree(
                [
                    each.facts(Ranks(tp_rank=i, tp_size=self.size), sharing=self.size)
                    for i, each in enumerate(measured)
                ],
                self._config,
                max_model_len=self._folder.max_model_len,
            )
            self._tell(AllocateRank.of(agreed))
            self._answers(RankReady)
        except BaseException:
            self._kill()
            raise
        return agreed

    def submit(self, plan: StepPlan) -> PendingStep:
        """Send a plan to all ranks, behind those under way."""
        if not self._ranks:
            raise EngineDeadError("the executor is closed")
        if self._has_failed:
            self._reset()
        frames = self._encoder.encode(plan)
        self._tell(RunPlan(len(frames)), *frames)
        step = _Step(self)
        self._under_way.append(step)
        if plan.awaits_masks:
            self._awaiting = step
        return step

    def mask(self, masks: TokenMasks) -> None:
        """Let the newest step sample its tokens."""
        if not self._ranks or self._awaiting is None:
            raise EngineDeadError("no step awaits masks")
        self._awaiting = None
        self._tell(MaskStep.of(masks))

    def use_idle_time(self) -> bool:
        """There is nothing to prepare on CPUs; a rank that has ended is seen."""
        if self._ranks and not self._under_way:
            self._take(0.0)
        return False

    def close(self) -> None:
        """End the ranks."""
        _end(self._ranks)
        if self._memory is not None:
            self._memory.close()

    def read(self, seconds: float | None) -> bool:
        """Take an answer to a step under way; False if none has come within so long."""
        arrived = self._take(seconds)
        if arrived is None:
            return False
        number, answer = arrived
        step = next(step for step in self._under_way if number not in step.answers)
        step.answers[number] = answer
        while self._under_way and self._under_way[0].is_over:
            self._has_failed |= self._under_way.popleft().failure is not None
        return True

    @property
    def pids(self) -> list[int]:
        """The ranks' processes."""
        return [rank.pid for rank in self._ranks]

    @property
    def num_exchanges(self) -> int:
        """Exchanges that ranks have begun: more of them are a sign of progress."""
        return self._collectives.num_begun

    def _reset(self) -> None:
        """Let ranks begin anew behind a step that raised."""
        while self._under_way:
            self.read(None)
        self._tell(ResetRank())
        self._answers(RankReady)
        self._has_failed = False

    def _tell(self, message: ToRank, *frames: Any) -> None:
        try:
            for rank in self._ranks:
                rank.send(message, *frames)
        except EngineDeadError:
            self._kill()
            raise

    def _take(self, seconds: float | None) -> tuple[int, FromRank] | None:
        """The next answer of any rank; others would wait for ever for one that has ended."""
        if not self._ranks:
            raise EngineDeadError("the executor is closed")
        try:
            number, answer = self._arrived.get(timeout=seconds)
        except Empty:
            return None
        if answer is None:
            death = self._ranks[number].death()
            self._kill()
            raise death
        return number, answer

    def _answers(self, kind: type[T]) -> list[T]:
        """One answer of each rank; what one could not do is raised."""
        found: dict[int, T] = {}
        while len(found) < self.size:
            arrived = self._take(None)
            assert arrived is not None
            number, answer = arrived
            if isinstance(answer, RankFailed):
                raise error_class(answer.error)(answer.text)
            assert isinstance(answer, kind)
            found[number] = answer
        return [found[number] for number in range(self.size)]

    def _kill(self) -> None:
        for rank in self._ranks:
            rank.kill()
        self.close()


def _end(ranks: list[RankProcess]) -> None:
    for rank in ranks:
        rank.hang_up()
    while ranks:
        ranks.pop().close()


class _Step:
    """A step on all ranks."""

    def __init__(self, executor: RanksExecutor) -> None:
        self._executor = executor
        self._death: EngineDeadError | None = None
        self.answers: dict[int, FromRank] = {}

    @property
    def failure(self) -> RankFailed | None:
        """What it raised, by the rank that did so of itself."""
        failed = [a for a in self.answers.values() if isinstance(a, RankFailed)]
        return min(failed, key=lambda answer: answer.is_aborted, default=None)

    @property
    def is_over(self) -> bool:
        """Whether all ranks have answered."""
        return len(self.answers) == self._executor.size

    def ends_within(self, seconds: float) -> bool:
        """False if ranks have exchanged something meanwhile."""
        while not self.is_over:
            begun = self._executor.num_exchanges
            try:
                if self._executor.read(seconds) or self._executor.num_exchanges == begun:
                    continue
            except EngineDeadError as error:
                self._death = error
                return True
            return False
        return True

    def result(self) -> StepResult:
        """Wait for all ranks."""
        if self._death is not None:
            raise self._death
        while not self.is_over:
            self._executor.read(None)
        if self.failure is not None:
            raise error_class(self.failure.error)(self.failure.text)
        first = self.answers[0]
        assert isinstance(first, StepRan)
        return first.result()
