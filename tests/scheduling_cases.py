"""What the scheduler is tried on: kinds of cache, modes, and the facts that runs must have seen."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.messages import MediaInput
from octavo.scheduling.slots import ONE_EACH, Yields
from octavo_registry.cache import CacheSpec, StateTensor

VOCAB = 37
POISON = VOCAB
ADAPTERS = {"a": 3, "b": 5, "c": 8, "d": 2}
"""Ranks by content hash; the pool holds the largest alone, or two or three of the others."""
NUM_RANK_ROWS = 8
AUTOMATON_WORDS = 5_200
"""One of the largest automata, or some of others."""
MAX_LEN = 48
MOST_TOKENS = 11
"""In a step."""
MAX_CROSS_ROWS = 11
MEDIA_ROWS = 2 * MAX_CROSS_ROWS
FULL = CacheSpec.full(kv_heads=1, head_dim=8, dtype="float32")
WINDOW = CacheSpec.sliding(kv_heads=1, head_dim=8, dtype="float32", window=7)
CROSS = CacheSpec.cross(kv_heads=1, head_dim=8, dtype="float32", rows=MAX_CROSS_ROWS)
MEDIA = CacheSpec.media(heads=1, width=8, dtype="float32", rows=MAX_CROSS_ROWS)
LAST = CacheSpec.sliding(kv_heads=1, head_dim=8, dtype="float32", window=1)
STATE = CacheSpec.state(
    tensors=(StateTensor((2,), "float32"),), log=(StateTensor((1,), "float32"),)
)
SPECS = {
    "full": {"a": FULL, "b": FULL},
    "window": {"a": WINDOW},
    "mixed": {"a": FULL, "b": WINDOW, "c": WINDOW, "d": WINDOW},
    "last": {"a": FULL, "b": LAST},
    "cross": {"a": FULL, "b": CROSS},
    "media": {"a": FULL, "b": FULL, "c": MEDIA},
    "state": {"a": FULL, "s": STATE},
    "states": {"s": STATE, "t": STATE},
    "all": {"a": FULL, "b": FULL, "c": MEDIA, "d": WINDOW, "s": STATE},
}


FACTS = (
    "steps",
    "new blocks",
    "logprobs",
    "bias",
    "min_tokens",
    "guided",
    "put off",
    "forked",
    "appended",
    "adapters",
    "waiting for rank rows",
    "automata",
    "waiting for words",
)
STORE_FACTS = ("brought", "not brought", "came for nobody", "kept", "not kept")
BURST_FACTS = ("bursts", "yielded none", "cut by a stop id", "cut by a guide's end")
STATE_FACTS = ("from a checkpoint",)
LATE_FACTS = ("ended", "left", "raised", "preempted")
"""Between the plan and the result of a repeated step, or by its result."""


@dataclass(frozen=True)
class Case:
    """``num_blocks`` are enough for one context by group, and not for many."""

    kind: str
    mode: str
    policy: str
    depth: int
    num_blocks: int = 15
    block_tokens: int = 4
    has_processors: bool = False
    most_of_prompt: int = 0
    has_store: bool = False
    yields: Yields = ONE_EACH
    num_logged: int = 1
    num_stages: int = 1

    def __str__(self) -> str:
        name = f"{self.kind}-{self.mode}-{self.policy}-{self.depth}-{self.block_tokens}"
        name += "-store" * self.has_store
        name += f"-{self.num_stages}stages" * (self.num_stages > 1)
        return name if self.yields == ONE_EACH else f"{name}-yields {'{}-{}'.format(*self.yields)}"


def sound(number: int, length: int) -> MediaInput:
    """One of a few, so that some are asked for again."""
    number = number % 3 * 4 + length % 4
    rows = MAX_CROSS_ROWS - number % 3
    return MediaInput(content_hash=f"{number:02}", spans=(), tensors={}, cross_rows=rows)
