"""How a product is cut into tiles, and where that is faster than cuBLAS: measured on an H200."""

from __future__ import annotations

import functools

TILE_TOKENS = 128
TILE_ROWS = (32, 48, 64, 80, 96, 112, 128, 160, 224, 256)
"""Rows of the weight that a tile may have; as in launch.cuh."""

CLUSTERS = {1: 132, 2: 66, 3: 39, 4: 30}
"""How many groups of so many blocks that share a tile run at once. More than these take turns."""

CHUNK_BYTES = 128
"""Bytes of a row: 64 features."""

MEMORY_BYTES, INTAKE_BYTES, FLOPS = 4.2e6, 0.1e6, 5.0e6
"""In a microsecond: from memory; into a multiprocessor, x included; of a multiprocessor."""

SPLIT_MICROSECONDS, TURN_MICROSECONDS = 1.0, 0.5
"""To pass sums on, for each block that shares a tile; to finish a tile."""

TOKENS = (range(113, 129),)
GATED_TOKENS = (range(65, 129), range(209, 257))
"""Where the kernel is faster than cuBLAS; gated, than cuBLAS and a kernel for the activation. It
computes tiles of 128 tokens, full or not."""

MIN_SIZE, MAX_ROWS = 1 << 22, 1 << 15
"""Elements and rows of the weights that it was measured with: from 2048 x 2048 to 28672 x 4096."""


@functools.lru_cache(maxsize=4096)
def choose(token_tiles: int, rows: int, features: int) -> tuple[int, int]:
    """The rows of a tile and the blocks that share it, by the least time expected."""
    chunks = -(-features * 2 // CHUNK_BYTES)
    memory = 2 * rows * features / MEMORY_BYTES

    def microseconds(tiling: tuple[int, int]) -> float:
        tile_rows, splits = tiling
        turns = -(-token_tiles * -(-rows // tile_rows) // CLUSTERS[splits])
        intake = (tile_rows + TILE_TOKENS) * CHUNK_BYTES / INTAKE_BYTES
        products = tile_rows * TILE_TOKENS * CHUNK_BYTES / FLOPS
        compute = turns * -(-chunks // splits) * max(intake, products)
        exchange = SPLIT_MICROSECONDS * splits if splits > 1 else 0.0
        # Where both count, neither hides the other whole.
        return float((memory**4 + compute**4) ** 0.25) + exchange + TURN_MICROSECONDS * turns

    tilings = [
        (tile_rows, splits)
        for tile_rows in TILE_ROWS
        for splits in CLUSTERS
        if splits == 1 or (2 * splits <= chunks and splits * tile_rows <= 384)
    ]
    return min(tilings, key=microseconds)


def pays(tokens: int, rows: int, features: int, *, gated: bool) -> bool:
    """Whether a product is best left to the kernel."""
    if rows > MAX_ROWS or rows * features < MIN_SIZE:
        return False
    return any(tokens in span for span in (GATED_TOKENS if gated else TOKENS))
