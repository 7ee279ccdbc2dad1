"""The kernel of octavo_kernels.linear for many tokens, on Hopper: what follows a product with it.

Products of thousands of tokens run at the GPU's power limit, so that a plain product takes as long
as cuBLAS's, and there is none. A gated one saves gates and ups the way through memory: on an H200
it takes 0.86 to 0.96 of the time of cuBLAS and a kernel for the gates. A sum takes 0.975 of
cuBLAS's, on average of three models' shapes and 2048 to 16384 tokens. Of a product that is
activated, or added with a bias, the kernel saves a pass over the results.

`launch` is for what `hopper_products.takes`; results' rows begin at multiples of ``RESULT_BYTES``.
`pays` tells where the kernel is faster. octavo_kernels.linear chooses, checks, and holds the
reference.

A token's result depends on neither the other tokens, their number nor timing. A product is rounded
before it is added. The weight is read while the kernel before still runs: the step must not write
it.
"""

import functools

from torch import Tensor

from octavo_kernels.build import I, KernelSpec, L, P
from octavo_kernels.hopper_products import call, is_gated, is_plain_activation, num_processors
from octavo_kernels.library import library

SPEC = KernelSpec(
    name="linear_tall",
    functions={"octavo_linear_tall": (P, P, P, P, I, I, I, I, I, I, L, L)},
    arches=("90a",),
)

RESULT_BYTES = 16

MIN_TOKENS, MIN_GATED_TOKENS = 2048, 513
"""From here on sums and gated products are faster than cuBLAS where tiles fill the GPU: with a
residual by 2.5 % on average (0.92 to 1.06 of its time for three models' shapes), with gates by 4 to
14 %."""

ALWAYS_FUSED_TOKENS = 2048
"""From here on gates and ups never go through memory, whether tiles fill the GPU or not."""

UNIT_TOKENS = 256
"""What a pair of multiprocessors takes at once."""

TILE_COSTS = {256: 1.0, 192: 0.775}
"""Rows of the weight beside them, and the time of such a unit by that of 256 rows: less efficient,
but more of them may fit the GPU. Units of 128 rows would be slower than cuBLAS."""

MAX_LOSS = 1.08
"""Time by that of multiprocessors which are never idle; up to this, cuBLAS is hardly faster."""

PASS_FEATURES = 350
"""A pass over a product's results takes as long as the product of so many features: 4 bytes at 4
TB/s, 2 operations at 700 TFLOP/s. Beyond `MAX_LOSS` the pass that is saved has to make up for all
that is idle: 27380 tokens, 1280 rows and 11 % idle, added with a bias, took on an H200 0.89 of the
time of cuBLAS and the pass with 1280 features, 1.04 with 5120."""


def pays(
    tokens: int,
    rows: int,
    features: int,
    epilogue: str,
    num_processors: int,
    *,
    has_bias: bool = False,
) -> bool:
    """Whether a product is best left to the kernel."""
    if is_gated(epilogue):
        if tokens >= ALWAYS_FUSED_TOKENS:
            return True
        is_large = tokens >= MIN_GATED_TOKENS
    else:
        is_large = tokens >= MIN_TOKENS and epilogue != "store"
    saves_pass = is_plain_activation(epilogue) or (epilogue == "add" and has_bias)
    most = max(MAX_LOSS, 1 + PASS_FEATURES / features) if saves_pass else MAX_LOSS
    return is_large and best_tile(tokens, rows, num_processors)[1] <= most


def launch(
    out_TO: Tensor, x_TI: Tensor, weight_OI: Tensor, bias_O: Tensor | None, epilogue: str
) -> None:
    """See `hopper_products.Launch`; not for "store"."""
    index = x_TI.get_device()
    tile_rows, _ = best_tile(x_TI.shape[0], weight_OI.shape[0], num_processors(index))
    function = library(SPEC, index).octavo_linear_tall
    call(function, out_TO, x_TI, weight_OI, bias_O, epilogue, tile_rows)


@functools.lru_cache(maxsize=4096)
def best_tile(tokens: int, rows: int, num_processors: int) -> tuple[int, float]:
    """The fastest tile's rows, and its time by that of multiprocessors which are never idle."""
    pairs = num_processors // 2
    units = {tile: -(-tokens // UNIT_TOKENS) * -(-rows // tile) for tile in TILE_COSTS}
    cost, tile = min((-(-units[tile] // pairs) * TILE_COSTS[tile], tile) for tile in TILE_COSTS)
    return tile, cost * pairs * UNIT_TOKENS * 256 / (tokens * rows)


__all__ = ["ALWAYS_FUSED_TOKENS", "RESULT_BYTES", "SPEC", "TILE_COSTS", "launch", "pays"]
