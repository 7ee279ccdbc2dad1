"""What sampling reads of the running sequences: one row a slot.

Axis suffixes of this folder: S slots, R rows of logits, L tokens of a sequence,
V vocabulary, K stop ids; G rows of a group sampled together, C candidate tokens of a row, N tokens
or words that a row's parameters name, D values of a digit, M rows under a mask, W words of 32 bits.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from torch import Tensor

from octavo_kernels.sample.parameters import KernelParameters


@dataclass(frozen=True, kw_only=True, eq=False)
class SamplingState:
    """Tensors by slot, views that their owner updates before each step; contiguous.

    Calls on one state follow one another: on CUDA they share memory that belongs to it.
    """

    tokens_SL: Tensor
    """int32, prompt and output; every id up to the length is in the vocabulary."""
    num_tokens_S: Tensor
    """int32, at least 1; the next token gets this index, and drafts stand from there on."""
    prompt_len_S: Tensor
    features_S: Tensor
    """int32, RowFeature bits."""
    temperature_S: Tensor
    top_p_S: Tensor
    """float32; 1 for rows without RowFeature.TOP_P."""
    min_p_S: Tensor
    """float32; 0 for rows without RowFeature.MIN_P."""
    presence_S: Tensor
    frequency_S: Tensor
    repetition_S: Tensor
    top_k_S: Tensor
    """int32; read only for rows with RowFeature.TOP_K."""
    seed_S2: Tensor
    """int32, low and high word."""
    min_len_S: Tensor
    """int32; stop ids may not be sampled while there are fewer tokens."""
    stop_ids_SK: Tensor
    """int32, padded with -1."""

    # Parameters that name tokens; None until some request brings one.
    bias_ids_SN: Tensor | None = None
    """int32, padded with any ids."""
    biases_SN: Tensor | None = None
    """float32, padded with 0."""
    allowed_SW: Tensor | None = None
    """int32, token i at bit i % 32 of word i // 32; a clear bit bans."""
    bad_words_SNL: Tensor | None = None
    """int32; words end in the last column and are padded with -1 before."""

    @functools.cached_property
    def kernel_parameters(self) -> KernelParameters:
        """All this as the CUDA kernels take it, with the memory that they work in."""
        return KernelParameters(self)
