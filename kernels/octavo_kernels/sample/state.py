"""What sampling reads of the running sequences: one row a slot.

Axis suffixes of this folder: S slots, R rows of logits, L tokens of a sequence,
V vocabulary, K stop ids; G rows of a group sampled together, C candidate tokens of a row, N tokens
or words that a row's parameters name, D values of a digit, M rows under a mask, W words of 32 bits.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor

if TYPE_CHECKING:
    from octavo_kernels.sample.parameters import KernelParameters

_INTS: Final = {"dtype": torch.int32}
_FLOATS: Final = {"dtype": torch.float32}


@dataclass(frozen=True, kw_only=True, eq=False)
class SamplingState:
    """Tensors by slot, views that their owner updates before each step; contiguous.

    The CUDA kernels take them in this order, as parameters.cuh has them. Calls on one state follow
    one another: on CUDA they share memory that belongs to it.
    """

    tokens_SL: Tensor = field(metadata=_INTS)
    """Prompt and output; every id up to the length is in the vocabulary."""
    num_tokens_S: Tensor = field(metadata=_INTS)
    """At least 1; the next token gets this index, and drafts stand from there on."""
    prompt_len_S: Tensor = field(metadata=_INTS)
    features_S: Tensor = field(metadata=_INTS)
    """RowFeature bits."""
    temperature_S: Tensor = field(metadata=_FLOATS)
    top_p_S: Tensor = field(metadata=_FLOATS)
    """1 for rows without RowFeature.TOP_P."""
    min_p_S: Tensor = field(metadata=_FLOATS)
    """0 for rows without RowFeature.MIN_P."""
    presence_S: Tensor = field(metadata=_FLOATS)
    frequency_S: Tensor = field(metadata=_FLOATS)
    repetition_S: Tensor = field(metadata=_FLOATS)
    top_k_S: Tensor = field(metadata=_INTS)
    """Read only for rows with RowFeature.TOP_K."""
    seed_S2: Tensor = field(metadata=_INTS)
    """Low and high word."""
    min_len_S: Tensor = field(metadata=_INTS)
    """Stop ids may not be sampled while there are fewer tokens."""
    stop_ids_SK: Tensor = field(metadata=_INTS)
    """Padded with -1."""

    # Parameters that name tokens; None until some request brings one.
    bias_ids_SN: Tensor | None = field(default=None, metadata=_INTS)
    """Padded with any ids."""
    biases_SN: Tensor | None = field(default=None, metadata=_FLOATS)
    """Padded with 0."""
    allowed_SW: Tensor | None = field(default=None, metadata=_INTS)
    """Token i at bit i % 32 of word i // 32; a clear bit bans."""
    bad_words_SNL: Tensor | None = field(default=None, metadata=_INTS)
    """Words end in the last column and are padded with -1 before."""

    @functools.cached_property
    def kernel_parameters(self) -> KernelParameters:
        """All this as the CUDA kernels take it, with the memory that they work in."""
        from octavo_kernels.sample.parameters import KernelParameters  # made of this class

        return KernelParameters(self)
