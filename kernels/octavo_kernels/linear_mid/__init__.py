"""The kernel of octavo_kernels.linear for about a hundred tokens, on Hopper.

There memory and tensor cores both count. `launch` is for what `hopper_products.takes`; results'
rows begin at multiples of ``RESULT_BYTES``. `pays` tells where the kernel is faster than cuBLAS
and what follows it. octavo_kernels.linear chooses, checks, and holds the reference.

A result depends on the number of tokens, which chooses the tiles, but never on timing. The weight
is read while the kernel before still runs: the step must not write it.
"""

from torch import Tensor

from octavo_kernels.build import I, KernelSpec, L, P
from octavo_kernels.hopper_products import call
from octavo_kernels.library import library
from octavo_kernels.linear_mid.tiling import TILE_TOKENS, choose, pays

SPEC = KernelSpec(
    name="linear_mid",
    functions={"octavo_linear_mid": (P, P, P, P, I, I, I, I, I, I, I, L, L)},
    sources=("kernel.cu", "bfloat16.cu", "float16.cu"),
    arches=("90a",),
)

RESULT_BYTES = 8


def launch(
    out_TO: Tensor, x_TI: Tensor, weight_OI: Tensor, bias_O: Tensor | None, epilogue: str
) -> None:
    """See `hopper_products.Launch`."""
    (tokens, features), rows = x_TI.shape, weight_OI.shape[0]
    tile_rows, splits = choose(-(-tokens // TILE_TOKENS), rows, features)
    function = library(SPEC, x_TI.get_device()).octavo_linear_mid
    call(function, out_TO, x_TI, weight_OI, bias_O, epilogue, tile_rows, splits)


__all__ = ["RESULT_BYTES", "SPEC", "launch", "pays"]
