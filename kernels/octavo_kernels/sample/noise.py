"""Random numbers as a pure function of seed, position and token id.

The hash is integer arithmetic modulo 2**32, so that every device and every batch computes the
same bits. int32 stands for unsigned words: products wrap, right shifts drop the sign's copies.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Odd multipliers with good avalanche: two of the "lowbias32" finalizer, one from the golden ratio.
_MULTIPLIER_A = 0x7FEB352D
_MULTIPLIER_B = 0x846CA68B - 2**32
_GOLDEN = 0x9E3779B9 - 2**32

# 31 random bits to (0, 1): the factor keeps even the largest value, which float32 rounds up, below
# one, so that a token's noise is finite and no banned token can ever tie with the only allowed one.
_TO_UNIT = (1 - 2**-24) * 2**-31


def _xor_shift(x: Tensor, bits: int) -> Tensor:
    return x.bitwise_xor_((x >> bits).bitwise_and_((1 << (32 - bits)) - 1))


def mix(x: Tensor) -> Tensor:
    """A bijection of 32-bit words in which each input bit flips each output bit half the time."""
    x = _xor_shift(x.clone(), 16).mul_(_MULTIPLIER_A)
    x = _xor_shift(x, 15).mul_(_MULTIPLIER_B)
    return _xor_shift(x, 16)


def row_keys(seed_G2: Tensor, position_G: Tensor) -> tuple[Tensor, Tensor]:
    """Two independent 32-bit keys [G, 1] of each row's (seed, position)."""
    low_G, high_G = seed_G2.unbind(1)
    first_G = mix(mix(mix(low_G ^ _GOLDEN) ^ high_G) ^ position_G)
    second_G = mix(mix(mix(high_G ^ _MULTIPLIER_B) ^ position_G) ^ low_G)
    return first_G[:, None], second_G[:, None]


def log_exponential(keys: tuple[Tensor, Tensor], mixed_ids_GC: Tensor) -> Tensor:
    """The logarithm of a unit exponential for each row and token, float32.

    ``mixed_ids_GC`` is ``mix`` of token ids, and may have one row for all. A token's logit minus
    this is its logit plus Gumbel noise: the largest is a sample of the softmax.
    """
    first_G1, second_G1 = keys
    x_GC = (mixed_ids_GC ^ first_G1).mul_(_MULTIPLIER_A)
    x_GC = _xor_shift(x_GC, 15).bitwise_xor_(second_G1).mul_(_MULTIPLIER_B)
    x_GC = _xor_shift(x_GC, 16).bitwise_and_(0x7FFFFFFF)
    # log1p keeps full precision for the small exponentials, which are the ones that win.
    minus_unit_GC = x_GC.to(torch.float32).add_(0.5).mul_(-_TO_UNIT)
    return minus_unit_GC.log1p_().neg_().log_()
