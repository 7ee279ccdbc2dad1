"""Steps of one worker in this process.

A CUDA device runs behind the host by itself. On a CPU a thread does, so that the engine plans and
answers while the model computes: torch releases the interpreter lock in its kernels.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from octavo.config import EngineConfig
from octavo.errors import ConfigError, EngineDeadError
from octavo.execution.cpu_threads import useful_threads
from octavo.execution.reading import read_result
from octavo.execution.recordings import Recordings
from octavo.execution.worker import Runner, Worker, choose_device
from octavo.model_folder import ModelFolder
from octavo.sampling.forward import Sampled
from octavo.sampling.logprobs import TokenLogprobTensors
from octavo.sampling.vectors import Vectors
from octavo.steps.plan import StepPlan, StepResult, TokenMasks
from octavo.steps.pooled_plan import PooledPlan
from octavo_registry import PluginHost
from octavo_registry.executor import ExecutorFacts, PendingStep
from octavo_registry.faults import one_line

log = logging.getLogger(__name__)


class LocalExecutor:
    """One worker; the executor of a single device."""

    def __init__(self, config: EngineConfig, folder: ModelFolder, host: PluginHost) -> None:
        if config.parallel.num_devices != 1:
            raise ConfigError(
                f"executor 'local' drives one device, not {config.parallel.num_devices}; leave it "
                "out, or set tensor_parallel_size and pipeline_parallel_size to 1"
            )
        self._config, self._folder, self._host = config, folder, host
        self._worker: Worker | None = None
        # The CPU's command queue: one thread, so that steps run in order.
        self._thread: ThreadPoolExecutor | None = None
        self._landings: Iterator[_Landing] = iter(())
        self._awaiting: _AwaitingStep | None = None
        self._recordings: Recordings | None = None
        self._idle_work_failed = False

    def start(self) -> ExecutorFacts:
        """Load the model and make the cache."""
        if choose_device(self._config.model.device).type == "cuda":
            worker = Worker(self._config, self._folder, self._host)
            facts = worker.start()
            self._worker = worker
            num_slots = 0 if facts.state is None else facts.state.num_slots
            # One more than steps may be under way: the oldest is read while the newest is launched.
            landings = [_Landing(num_slots) for _ in range(self._config.scheduler.async_depth + 1)]
            self._landings = itertools.cycle(landings)
            if worker.runner.can_record:
                self._recordings = Recordings(
                    worker.runner.prepare,
                    num_slots=num_slots,
                    has_adapters=facts.adapters is not None,
                    has_processors=bool(self._config.logits_processors),
                )
                self._recordings.warm_up()
        else:
            most_threads = torch.get_num_threads()
            self._thread = ThreadPoolExecutor(1, "octavo-cpu", self._set_threads)
            try:
                self._worker, facts = self._thread.submit(self._load_on_cpu, most_threads).result()
            finally:
                # Torch gives threads that are new what was set last: theirs is not the engine's.
                torch.set_num_threads(most_threads)
        return facts

    def submit(self, plan: StepPlan | PooledPlan) -> PendingStep:
        """Launch a step behind those under way."""
        if self._worker is None:
            raise EngineDeadError("the executor is closed")
        runner = self._worker.runner
        step: PendingStep
        if self._thread is not None:
            step = _CpuStep(self._thread.submit(_run_on_cpu, runner, plan), runner)
        else:
            step = self._launch_prepared(runner, plan)
        if plan.awaits_masks:
            step = self._awaiting = _AwaitingStep(step)
        return step

    def mask(self, masks: TokenMasks) -> None:
        """Let the newest step sample its tokens."""
        if self._worker is None or self._awaiting is None:
            raise EngineDeadError("no step awaits masks")
        awaiting, self._awaiting = self._awaiting, None
        runner = self._worker.runner
        if self._thread is not None:
            future = self._thread.submit(_sample_on_cpu, runner, masks, awaiting.step)
            awaiting.step = _CpuStep(future, runner)
        elif not isinstance(awaiting.step, _FailedStep):
            awaiting.step = self._launch(partial(runner.sample, masks))

    def _launch(self, launch: Callable[[], Sampled | None]) -> PendingStep:
        try:
            sampled = launch()
        except Exception as error:
            return _FailedStep(_judge(error))
        return _ForwardStep() if sampled is None else _CudaStep(sampled, next(self._landings))

    def _launch_prepared(self, runner: Runner, plan: StepPlan | PooledPlan) -> PendingStep:
        """Launch a step; where it could have been recorded it is, for those to come."""
        recordings = self._recordings
        if recordings is None or isinstance(plan, PooledPlan):
            return self._launch(partial(runner.run, plan))
        lacking = recordings.name(plan)
        step = self._launch(partial(runner.run, plan))
        if lacking is not None and not isinstance(step, _FailedStep):
            try:
                recordings.prepare(lacking)
            except Exception as error:  # nobody waits for this
                judged = _judge(error)
                if isinstance(judged, EngineDeadError):
                    return _FailedStep(judged)
                log.warning("a step is not recorded: %s", one_line(error))
        return step

    def use_idle_time(self) -> bool:
        """Record decode steps that may come, on CUDA."""
        if self._recordings is None or self._worker is None or self._idle_work_failed:
            return False
        try:
            return self._recordings.prepare_another()
        except Exception as error:  # nobody waits for this: an engine that can go on does
            judged = _judge(error)
            if isinstance(judged, EngineDeadError):
                raise judged from error
            log.warning("steps are no longer prepared in idle time: %s", one_line(error))
            self._idle_work_failed = True
            return False

    def close(self) -> None:
        """End the thread and free model and cache."""
        if self._thread is not None:
            self._thread.shutdown(wait=True, cancel_futures=True)
            self._thread = None
        if self._worker is not None:
            on_cuda = self._worker.device.type == "cuda"
            self._worker.runner.close()
            self._worker = self._recordings = None
            if on_cuda:
                torch._C._cuda_clearCublasWorkspaces()  # that of the recording stream: 32 MiB
                torch.cuda.empty_cache()

    def _set_threads(self) -> None:
        if self._config.model.num_threads is not None:
            torch.set_num_threads(self._config.model.num_threads)

    def _load_on_cpu(self, most_threads: int) -> tuple[Worker, ExecutorFacts]:
        """On the thread that will run the steps, whose count of threads is its own."""
        worker = Worker(self._config, self._folder, self._host)
        facts = worker.start()
        if self._config.model.num_threads is None:
            model = cast(nn.Module, worker.runner.model)
            torch.set_num_threads(useful_threads(model, most=most_threads))
        return worker, facts


def _run_on_cpu(runner: Runner, plan: StepPlan | PooledPlan) -> StepResult | None:
    sampled = runner.run(plan)
    return None if sampled is None else read_result(sampled)


def _sample_on_cpu(runner: Runner, masks: TokenMasks, forward: PendingStep) -> StepResult:
    forward.result()  # or what it raised
    return read_result(runner.sample(masks))


@dataclass(slots=True)
class _CpuStep:
    """A step in the thread that runs them."""

    future: Future[Any]
    runner: Runner

    def ends_within(self, seconds: float) -> bool:
        """False if it has come to another layer meanwhile."""
        begun = self.runner.layers.num_begun
        while True:
            try:
                self.future.exception(seconds)
            except TimeoutError:
                if self.runner.layers.num_begun != begun:
                    return False
            else:
                return True

    def result(self) -> StepResult:
        """Wait for it."""
        result: StepResult = self.future.result()
        return result


@dataclass(slots=True)
class _AwaitingStep:
    """A step that samples when its masks have come."""

    step: PendingStep

    def ends_within(self, seconds: float) -> bool:
        """As the sample says."""
        return self.step.ends_within(seconds)

    def result(self) -> StepResult:
        """Wait for the sample."""
        result: StepResult = self.step.result()
        return result


class _Short:
    """A step on CUDA, which takes no longer than its kernels: ``result`` may wait."""

    def ends_within(self, seconds: float) -> bool:
        """It ends soon."""
        return True


class _ForwardStep(_Short):
    """A forward pass on CUDA; nothing of it is for the host."""

    def result(self) -> None:
        """There is nothing to wait for."""


class _Landing:
    """Where a step's tokens arrive on the host, and the event that says so; steps take turns."""

    def __init__(self, num_slots: int) -> None:
        self.tokens_S = torch.empty(num_slots, dtype=torch.int32, pin_memory=True)
        self.arrived = torch.cuda.Event()
        self.stream = torch.cuda.current_stream()  # to ask for it is 10 us of a step


class _CudaStep(_Short):
    """Results on their way to the host."""

    def __init__(self, sampled: Sampled, landing: _Landing) -> None:
        tokens_RK, counts_R, unusable_RK = sampled.tokens_RK, sampled.counts_R, sampled.unusable_RK
        if tokens_RK is not None and counts_R is None:
            landed_R1 = landing.tokens_S[: len(tokens_RK), None]
            tokens_RK = landed_R1.copy_(tokens_RK, non_blocking=True)
        elif tokens_RK is not None:
            tokens_RK = _copy(tokens_RK)
        self._host = Sampled(
            tokens_RK,
            None if counts_R is None else _copy(counts_R),
            _copy_all(sampled.logprobs),
            _copy_all(sampled.prompt_logprobs),
            None if unusable_RK is None else _copy(unusable_RK),
            None if sampled.vectors is None else Vectors(*map(_copy, sampled.vectors)),
        )
        self._arrived = landing.arrived
        self._arrived.record(landing.stream)

    def result(self) -> StepResult:
        """Wait for the copies."""
        try:
            self._arrived.synchronize()
        except Exception as error:
            raise _judge(error) from error
        return read_result(self._host)


@dataclass(slots=True)
class _FailedStep(_Short):
    """A step that raised while it was launched."""

    error: Exception

    def result(self) -> StepResult:
        """Raise what it raised, in its turn.

        What it had launched before may still run, and nobody else waits for it: later steps would
        overwrite the buffers that its copies read.
        """
        try:
            torch.cuda.synchronize()
        except Exception as error:
            raise _judge(error) from error
        raise self.error


def _copy(tensor: Tensor) -> Tensor:
    pinned = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return pinned.copy_(tensor, non_blocking=True)


def _copy_all(tensors: TokenLogprobTensors | None) -> TokenLogprobTensors | None:
    if tensors is None:
        return None
    return TokenLogprobTensors(
        token_ids_RK1=_copy(tensors.token_ids_RK1),
        logprobs_RK1=_copy(tensors.logprobs_RK1),
        ranks_R=_copy(tensors.ranks_R),
    )


def _judge(error: Exception) -> Exception:
    """A broken CUDA context ends the engine; anything else belongs to the step's requests."""
    broken = isinstance(error, torch.AcceleratorError) and not isinstance(
        error, torch.OutOfMemoryError
    )
    if broken:
        return EngineDeadError(f"CUDA failed and cannot go on: {error}")
    return error
