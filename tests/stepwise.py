"""A scheduler without a model, whose steps a test takes one by one."""

from __future__ import annotations

from typing import Any

import numpy as np

from octavo.cache.groups import make_layout
from octavo.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from octavo.messages import EngineRequest, StepOutputs, TokenSampling
from octavo.scheduling.record import StepRecord
from octavo.scheduling.results import StepResults
from octavo.scheduling.scheduler import Scheduler
from octavo.scheduling.slots import ONE_EACH, Yields
from octavo.steps.layout import StateLayout
from octavo.steps.plan import StepResult
from octavo_registry.cache import CacheSpec

BLOCK_TOKENS = 4
MAX_LEN = 32
TOKEN = 7
"""What every row draws, unless a test says otherwise."""


class Steps:
    """Requests by name; a full attention layer, and a pool of ``num_blocks`` blocks."""

    def __init__(
        self,
        *,
        num_blocks: int = 64,
        slots: int = 8,
        swap: int = 0,
        yields: Yields = ONE_EACH,
        num_stages: int = 1,
        **scheduler,
    ) -> None:
        layer = CacheSpec.full(kv_heads=1, head_dim=8, dtype="float32")
        layout = make_layout({"layer": layer}, lambda spec: 64, block_tokens=BLOCK_TOKENS)
        config = EngineConfig(
            model=ModelConfig(model="none"),
            cache=CacheConfig(block_size=BLOCK_TOKENS),
            scheduler=SchedulerConfig(max_num_seqs=slots, **scheduler),
        )
        state = StateLayout(
            num_slots=slots,
            max_model_len=MAX_LEN,
            max_blocks=layout.table_blocks(MAX_LEN),
            num_groups=len(layout.groups),
        )
        self.scheduler = Scheduler(
            config,
            layout,
            state,
            num_blocks=num_blocks,
            num_swap_blocks=swap,
            model_identity="m",
            vocab_size=100,
            yields=yields,
            num_stages=num_stages,
        )
        self.results = StepResults(self.scheduler, enable_prefix_caching=True, faults=Nobody())
        self._names: dict[int, str] = {}

    def add(self, name: str, prompt: int | list[int], max_tokens: int = 8, **more: Any) -> None:
        """Queue a request; a number is the length of a prompt that shares nothing with others."""
        number = len(self._names)
        self._names[number] = name
        tokens = prompt if isinstance(prompt, list) else [30 + number] * prompt
        sampling = {key: more.pop(key) for key in list(more) if key.endswith("token_ids")}
        self.scheduler.add(
            EngineRequest(
                request_id=name,
                sequences=(number,),
                prompt_token_ids=tokens,
                sampling=TokenSampling(seed=0, max_tokens=max_tokens, **sampling),
                **more,
            )
        )

    def plan(self) -> tuple[dict[str, int], StepRecord | None]:
        """The rows of the next step with their numbers of tokens, in its order."""
        planned = self.scheduler.schedule()
        if planned is None:
            return {}, None
        plan, record = planned
        names = [self._names[self.scheduler.slot_table.at(slot).id] for slot in plan.slots.tolist()]
        return dict(zip(names, plan.query_lens.tolist(), strict=True)), record

    def end(self, record: StepRecord, token: int = TOKEN) -> StepOutputs:
        """Every row of the step that draws has drawn the token."""
        tokens_RK = np.full((len(record.sample_slots), 1), token, np.int32)
        return self.results.apply(record, StepResult(tokens_RK=tokens_RK))

    def end_with(self, record: StepRecord, *bursts: list[int], **more: Any) -> StepOutputs:
        """The rows of the step that sample have yielded these."""
        most = max(map(len, bursts))
        tokens = [burst + [-1] * (most - len(burst)) for burst in bursts]
        counts_R = np.array([len(burst) for burst in bursts], np.int32)
        tokens_RK = np.array(tokens, np.int32)
        return self.results.apply(
            record, StepResult(tokens_RK=tokens_RK, counts_R=counts_R, **more)
        )

    def step(self, token: int = TOKEN) -> dict[str, int]:
        """Plan a step and end it."""
        rows, record = self.plan()
        if record is not None:
            self.end(record, token)
        return rows

    def named(self, numbers: list[int]) -> list[str]:
        return [self._names[number] for number in numbers]

    @property
    def preempted(self) -> list[str]:
        """Since the last outputs."""
        return self.named(self.scheduler.preempted)


class Nobody:
    """No plugin is there to blame."""

    def blame(self, number: int) -> Exception:
        return RuntimeError(number)

    def name(self, error: BaseException) -> BaseException:
        return error
