"""What crosses between an engine and its ranks' processes; plans come as frames of their own."""

from __future__ import annotations

from typing import Any, Final

import msgspec
import numpy as np

from octavo.cache.budget import DeviceMemory
from octavo.cache.groups import CacheLayout
from octavo.config import EngineConfig
from octavo.execution.agreement import RankFacts
from octavo.messages import AdapterFacts
from octavo.steps.layout import StateLayout
from octavo.steps.plan import LogprobArrays, StepResult, TokenMasks
from octavo_registry.cache import CacheSpec
from octavo_registry.executor import ExecutorFacts
from octavo_registry.manifest import Manifest
from octavo_registry.ranks import Ranks


class SentArray(msgspec.Struct, frozen=True, array_like=True):
    """An array of numbers."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes

    @classmethod
    def of(cls, array: Any) -> SentArray | None:
        """None for None."""
        if array is None:
            return None
        return cls(array.dtype.str, array.shape, np.ascontiguousarray(array).tobytes())

    def array(self) -> Any:
        """What was sent, in memory that may be written to."""
        octets = bytearray(self.data)
        return np.frombuffer(octets, np.dtype(self.dtype)).reshape(self.shape)


def _read(sent: SentArray | None) -> Any:
    return None if sent is None else sent.array()


class StartRank(msgspec.Struct, frozen=True, tag=True):
    """First message to a rank: what it loads, exactly."""

    config: EngineConfig
    manifest: Manifest
    tp_rank: int
    tp_size: int
    log_level: int


class AllocateRank(msgspec.Struct, frozen=True, tag=True):
    """What all ranks agreed on."""

    layout: CacheLayout
    num_slots: int
    max_model_len: int
    num_blocks: int
    num_swap_blocks: int
    num_lines: int
    num_swap_lines: int
    most_recorded_queries: int

    @classmethod
    def of(cls, agreed: ExecutorFacts) -> AllocateRank:
        """What a rank needs of it."""
        return cls(
            layout=agreed.layout,
            num_slots=agreed.state.num_slots,
            max_model_len=agreed.max_model_len,
            num_blocks=agreed.num_blocks,
            num_swap_blocks=agreed.num_swap_blocks,
            num_lines=agreed.num_lines,
            num_swap_lines=agreed.num_swap_lines,
            most_recorded_queries=agreed.most_recorded_queries,
        )

    def agreed(self) -> ExecutorFacts:
        """The facts again."""
        return ExecutorFacts(
            layout=self.layout,
            state=StateLayout(
                num_slots=self.num_slots,
                max_model_len=self.max_model_len,
                max_blocks=self.layout.table_blocks(self.max_model_len),
                num_groups=len(self.layout.groups),
            ),
            num_blocks=self.num_blocks,
            num_swap_blocks=self.num_swap_blocks,
            num_lines=self.num_lines,
            num_swap_lines=self.num_swap_lines,
            max_model_len=self.max_model_len,
            most_recorded_queries=self.most_recorded_queries,
        )


class RunPlan(msgspec.Struct, frozen=True, tag=True):
    """So many frames of a plan follow."""

    num_frames: int


class MaskStep(msgspec.Struct, frozen=True, tag=True):
    """Masks of the step that awaits them."""

    rows: SentArray
    bits: SentArray
    put_off: SentArray

    @classmethod
    def of(cls, masks: TokenMasks) -> MaskStep:
        """The masks to send."""
        arrays = (masks.rows_M, masks.bits_MW, masks.put_off_P)
        return cls(*(SentArray.of(array) for array in arrays))  # type: ignore[arg-type]

    def masks(self) -> TokenMasks:
        """The masks that were sent."""
        return TokenMasks(
            rows_M=self.rows.array(), bits_MW=self.bits.array(), put_off_P=self.put_off.array()
        )


class ResetRank(msgspec.Struct, frozen=True, tag=True):
    """All steps are over and one has raised: begin to count exchanges anew."""


ToRank = StartRank | AllocateRank | RunPlan | MaskStep | ResetRank


class RankMeasured(msgspec.Struct, frozen=True, tag=True):
    """A rank's facts, without who it is."""

    memory: DeviceMemory
    workspace_bytes: int
    num_slots: int
    specs: list[tuple[str, CacheSpec]]
    page_bytes: list[tuple[CacheSpec, int]]
    most_recorded_queries: int
    masks_on_device: bool
    adapters: AdapterFacts | None

    @classmethod
    def of(cls, facts: RankFacts) -> RankMeasured:
        """The facts to send."""
        return cls(
            memory=facts.memory,
            workspace_bytes=facts.workspace_bytes,
            num_slots=facts.num_slots,
            specs=list(facts.specs.items()),
            page_bytes=list(facts.page_bytes.items()),
            most_recorded_queries=facts.most_recorded_queries,
            masks_on_device=facts.masks_on_device,
            adapters=facts.adapters,
        )

    def facts(self, ranks: Ranks, *, sharing: int) -> RankFacts:
        """A rank's facts; so many share the memory that each has seen as free."""
        memory = msgspec.structs.asdict(self)["memory"]
        if memory.is_host:
            memory = DeviceMemory.of_host(memory.free // sharing)
        return RankFacts(
            ranks=ranks,
            memory=memory,
            workspace_bytes=self.workspace_bytes,
            num_slots=self.num_slots,
            specs=dict(self.specs),
            page_bytes=dict(self.page_bytes),
            most_recorded_queries=self.most_recorded_queries,
            masks_on_device=self.masks_on_device,
            adapters=self.adapters,
        )


class RankReady(msgspec.Struct, frozen=True, tag=True):
    """It has allocated, or reset."""


class StepRan(msgspec.Struct, frozen=True, tag=True):
    """A step is over; rank 0 says what was sampled, others have nothing new."""

    tokens: SentArray | None = None
    counts: SentArray | None = None
    logprobs: list[SentArray] | None = None
    prompt_logprobs: list[SentArray] | None = None
    unusable: SentArray | None = None

    @classmethod
    def of(cls, result: StepResult) -> StepRan:
        """The result to send."""
        return cls(
            tokens=SentArray.of(result.tokens_RK),
            counts=SentArray.of(result.counts_R),
            logprobs=_sent(result.logprobs),
            prompt_logprobs=_sent(result.prompt_logprobs),
            unusable=SentArray.of(result.unusable_RK),
        )

    def result(self) -> StepResult:
        """What rank 0 sent."""
        return StepResult(
            tokens_RK=_read(self.tokens),
            counts_R=_read(self.counts),
            logprobs=_received(self.logprobs),
            prompt_logprobs=_received(self.prompt_logprobs),
            unusable_RK=_read(self.unusable),
        )


class RankFailed(msgspec.Struct, frozen=True, tag=True):
    """What the rank was told to do raised; a step's failure is that step's alone."""

    error: str
    """The name of its class in ``octavo.errors``."""
    text: str
    is_aborted: bool = False
    """Whether another rank raised, for which this one stopped waiting."""


FromRank = RankMeasured | RankReady | StepRan | RankFailed
ENCODER: Final = msgspec.msgpack.Encoder()


def _sent(logprobs: LogprobArrays | None) -> Any:
    if logprobs is None:
        return None
    return [SentArray.of(a) for a in (logprobs.token_ids, logprobs.logprobs, logprobs.ranks)]


def _received(sent: list[SentArray] | None) -> LogprobArrays | None:
    if sent is None:
        return None
    token_ids, logprobs, ranks = (each.array() for each in sent)
    return LogprobArrays(token_ids=token_ids, logprobs=logprobs, ranks=ranks)
