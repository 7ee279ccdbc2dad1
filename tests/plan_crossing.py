"""Plans that go through frames, as to another process, and come out the same."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from octavo.cache.groups import CacheLayout
from octavo.messages import MediaInput, PackedAdapter
from octavo.steps.layout import StateLayout
from octavo.steps.plan import StepPlan
from octavo.steps.plan_codec import PlanDecoder, PlanEncoder
from octavo_registry.executor import ExecutorFacts
from shadow_lines import NUM_LINES, NUM_SWAP_LINES

PLAIN = (int, float, str, bytes, type(None))


class Crossing:
    """An encoder, and the decoder that its frames come to."""

    def __init__(
        self, layout: CacheLayout, state: StateLayout, num_blocks: int, num_swap_blocks: int
    ) -> None:
        facts = ExecutorFacts(
            layout=layout,
            state=state,
            num_blocks=num_blocks,
            num_swap_blocks=num_swap_blocks,
            num_lines=NUM_LINES,
            num_swap_lines=NUM_SWAP_LINES,
            max_model_len=state.max_model_len,
        )
        self._encoder, self._decoder = PlanEncoder(), PlanDecoder(facts)
        self.num_bytes = 0
        """What the last plan's frames had."""

    def cross(self, plan: StepPlan) -> StepPlan:
        """What another process is told to do."""
        frames = [bytearray(frame) for frame in self._encoder.encode(plan)]
        self.num_bytes = sum(map(len, frames))
        decoded = self._decoder.decode(frames)
        for name in StepPlan.__struct_fields__:
            assert_same(getattr(decoded, name), getattr(plan, name), name)
        return decoded


def assert_same(found: Any, expected: Any, where: str) -> None:
    """Equal through and through; of arrays the values, of token texts what devices read."""
    if isinstance(expected, PLAIN):
        assert found == expected, where
    elif isinstance(expected, np.ndarray):
        assert np.array_equal(found, expected), where
        assert expected.dtype == np.intp or found.dtype == expected.dtype, where
    elif isinstance(expected, list):
        assert len(found) == len(expected), where
        if expected and all(isinstance(each, PLAIN) for each in expected):
            assert found == expected, where
            return
        for i, (one, other) in enumerate(zip(found, expected, strict=True)):
            assert_same(one, other, f"{where}[{i}]")
    elif isinstance(expected, MediaInput):
        assert found == expected, where
    elif isinstance(expected, PackedAdapter):
        assert found.head == expected.head, where
        assert bytes(found.data) == bytes(expected.data), where
    elif hasattr(expected, "token_bytes"):
        assert list(found.token_bytes) == list(expected.token_bytes), where
        assert found.stop_token_ids == expected.stop_token_ids, where
    elif isinstance(expected, msgspec.Struct) or not hasattr(expected, "__slots__"):
        assert found == expected, where
    elif hasattr(expected, "_fields") or hasattr(expected, "__dataclass_fields__"):
        names = getattr(expected, "_fields", None) or expected.__dataclass_fields__
        for name in names:
            assert_same(getattr(found, name), getattr(expected, name), f"{where}.{name}")
    else:
        assert found == expected, where
