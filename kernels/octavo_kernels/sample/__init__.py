"""The choice of one token a row, for a batch of mixed parameters, without a word to the host.

The order is: bitmask, allowed tokens and bias, least length, bad words, penalties; then the
likeliest token, or temperature, min_p, top_k, top_p and a random choice. A row's token depends on
its own logits and parameters alone, bit for bit. Axis suffixes are those of state.py.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from octavo_kernels.build import I, KernelSpec, L, P
from octavo_kernels.library import DTYPE_CODES, library, stream_of
from octavo_kernels.row_features import ALL_WORK, Work
from octavo_kernels.sample import reference
from octavo_kernels.sample.parameters import MAX_ROWS
from octavo_kernels.sample.reference import processed as processed
from octavo_kernels.sample.state import SamplingState

SPEC = KernelSpec(
    name="sample",
    functions={"octavo_sample": (P, P, I, L, I, I, P, P, P, P, P, I, P, I)},
)

_LOGIT_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_SCRATCH_LOGITS = 2**26
"""Scores of 4 bytes each: 256 MiB."""


def sample(
    logits_RV: Tensor,
    slots_R: Tensor,
    state: SamplingState,
    *,
    work: Work = ALL_WORK,
    ahead_R: Tensor | None = None,
    mask_rows_R: Tensor | None = None,
    mask_MW: Tensor | None = None,
    tokens_R: Tensor | None = None,
) -> Tensor:
    """Choose a token for each row, int32, in ``tokens_R`` if given; the logits stay as they are.

    ``ahead_R`` is how many drafts of its slot stand before a row, None: none; to the row they are
    tokens of the slot like others. ``work`` is what ``work_of`` gives for the rows' features, or
    more. ``mask_MW`` are bitmasks as in ``SamplingState.allowed_SW``, and ``mask_rows_R`` says
    which is a row's, or -1.
    """
    num_rows, vocab_size = logits_RV.shape
    if tokens_R is None:
        tokens_R = torch.empty(num_rows, dtype=torch.int32, device=logits_RV.device)
    _check(logits_RV, slots_R, tokens_R, ahead_R, mask_rows_R, mask_MW)
    if num_rows == 0:
        return tokens_R
    if logits_RV.device.type != "cuda":
        chosen_R = reference.sample(logits_RV, slots_R, state, ahead_R, mask_rows_R, mask_MW)
        return tokens_R.copy_(chosen_R)
    num_together = num_rows
    scratch: Tensor | None = None
    if work & Work.EDITED_THRESHOLD_ROWS:
        num_together = min(num_rows, max(1, _SCRATCH_LOGITS // vocab_size))
        scratch = torch.empty(
            num_together * vocab_size, dtype=torch.float32, device=logits_RV.device
        )
    index = logits_RV.device.index
    parameters = ctypes.addressof(state.kernel_parameters)
    stride, item_bytes = logits_RV.stride(0), logits_RV.element_size()
    for start in range(0, num_rows, num_together):
        library(SPEC, index).octavo_sample(
            parameters,
            logits_RV.data_ptr() + start * stride * item_bytes,
            DTYPE_CODES[logits_RV.dtype],
            stride,
            min(num_together, num_rows - start),
            vocab_size,
            slots_R.data_ptr() + 4 * start,
            None if ahead_R is None else ahead_R.data_ptr() + 4 * start,
            tokens_R.data_ptr() + 4 * start,
            None if mask_rows_R is None else mask_rows_R.data_ptr() + 4 * start,
            None if mask_MW is None else mask_MW.data_ptr(),
            0 if mask_MW is None else mask_MW.shape[1],
            None if scratch is None else scratch.data_ptr(),
            int(work),
            stream_of(index),
        )
    return tokens_R


def _check(
    logits_RV: Tensor,
    slots_R: Tensor,
    tokens_R: Tensor,
    ahead_R: Tensor | None,
    mask_rows_R: Tensor | None,
    mask_MW: Tensor | None,
) -> None:
    num_rows, vocab_size = logits_RV.shape
    if logits_RV.dtype not in _LOGIT_DTYPES or logits_RV.stride(1) != 1:
        raise ValueError(
            f"sample: logits are {logits_RV.dtype} of strides {logits_RV.stride()}; they must be "
            "float32, float16 or bfloat16 with rows of neighbours"
        )
    if num_rows > MAX_ROWS:
        raise ValueError(f"sample: {num_rows} rows; at most {MAX_ROWS} are sampled at once")
    lists = {"slots": slots_R, "tokens": tokens_R, "ahead": ahead_R, "mask_rows": mask_rows_R}
    for name, ids_R in lists.items():
        if ids_R is not None and (
            ids_R.dtype is not torch.int32 or ids_R.shape != (num_rows,) or ids_R.stride(0) != 1
        ):
            raise ValueError(
                f"sample: {name} is {ids_R.dtype} {list(ids_R.shape)} of strides {ids_R.stride()}; "
                f"it must be a list of {num_rows} int32"
            )
    if (mask_rows_R is None) != (mask_MW is None):
        raise ValueError("sample: mask_rows_R and mask_MW come together")
    if mask_MW is not None and (
        mask_MW.dtype is not torch.int32
        or not mask_MW.is_contiguous()
        or 32 * mask_MW.shape[1] < vocab_size
    ):
        raise ValueError(
            f"sample: masks are {mask_MW.dtype} {list(mask_MW.shape)} of strides "
            f"{mask_MW.stride()}; they must be contiguous int32, a bit for each of {vocab_size} ids"
        )


__all__ = ["SPEC", "SamplingState", "sample"]
