"""Block-sparse attention by two parameters: blocks nearby, and vertical stripes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSparse:
    """Positions go by blocks; a query sees, within what it sees anyway, some blocks of keys.

    Head h's query in block i sees a key in block j if i - j < ``local_blocks``, or if
    (j + 1 + h * ``head_step``) % ``vertical_stride`` is 0. Nothing depends on the data, so there is
    no mask to build, and a recorded graph holds for all lengths.
    """

    block_tokens: int
    """Tokens of the pattern's blocks; the cache's may be smaller or larger."""
    local_blocks: int
    vertical_stride: int
    head_step: int = 0
    """0: all heads see the same stripes."""

    def __post_init__(self) -> None:
        if min(self.block_tokens, self.local_blocks, self.vertical_stride) < 1:
            raise ValueError(f"{self}: blocks, and the stride of stripes, must be 1 or more")
        if self.head_step < 0:
            raise ValueError(f"{self}: head_step must be 0 or more")
