"""Byte automata on the device: which tokens may come, and where the sampled one leads.

A packed automaton is ``int32``: a header of 4 words [states, columns, calls, 0], the class of each
byte in 64 words of 4 bytes, the table state by state, and the calls. Automata lie in one pool, each
from a multiple of 4 words on; the pool's first 4 words are nobody's. What entries mean stands at
``octavo_registry.guided.ByteAutomaton``. Whoever puts an automaton into the pool has checked that
it names no state, column or call that it has not; states and stacks are looked at here, so that no
slot leads out of its automaton.

Axis suffixes: S slots that sequences run in, R rows of logits, L tokens that a slot has room for,
D depth of a stack, W words (of the pool, or of a mask), N bytes of all tokens, V tokens of the
vocabulary, V1 one more, K stop tokens. In the reference: B bytes, Q states, C classes, P places,
T texts.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from octavo_kernels.build import I, KernelSpec, P
from octavo_kernels.byte_automaton import reference
from octavo_kernels.byte_automaton.tables import (
    MOST_DEPTH,
    MOST_HOPS,
    WINDOW,
    AutomatonStates,
    TokenTable,
)
from octavo_kernels.library import library, stream_of

_TEXTS = (P, P, I, P, I)

SPEC = KernelSpec(
    name="byte_automaton",
    functions={
        "octavo_fill_masks": (*(P, I, P, P, P, P), P, *(P, P, P, I), *(P, I, P), I),
        "octavo_walk_automata": (*(P, P, P, I), *(P, P, P, P), *(P, P, P, P), P, *_TEXTS),
        "octavo_walk_drafts": (*(P, P, I, P, P, I), *(P, P, P, P), *(P, P, P, P), P, *_TEXTS),
    },
)

MAX_ROWS = 8192
"""Each block of the kernel lists the rows with an automaton in shared memory."""


def fill_masks(
    slots_R: Tensor,
    states: AutomatonStates,
    pool_W: Tensor,
    tokens: TokenTable,
    masks_RW: Tensor,
    mask_rows_R: Tensor,
) -> None:
    """Write the tokens that may come in each row whose slot has an automaton.

    Such a row's number goes to ``mask_rows_R``, and its mask to that row of ``masks_RW``: token i
    is bit ``i % 32`` of word ``i // 32``. Other rows get -1, and their masks stay as they are.
    """
    _check("fill_masks", states, pool_W, tokens, slots=slots_R, mask_rows=mask_rows_R)
    num_rows, num_words = len(slots_R), -(-tokens.vocab_size // 32)
    if num_rows > MAX_ROWS:
        raise ValueError(f"fill_masks: {num_rows} rows; there may be {MAX_ROWS}")
    if masks_RW.dtype is not torch.int32 or not masks_RW.is_contiguous():
        raise ValueError(
            f"fill_masks: masks are {masks_RW.dtype} of strides {masks_RW.stride()}; they must be "
            "contiguous int32"
        )
    if masks_RW.dim() != 2 or masks_RW.shape[0] < num_rows or masks_RW.shape[1] != num_words:
        raise ValueError(
            f"fill_masks: masks {list(masks_RW.shape)} are not of {num_rows} rows and {num_words} "
            f"words for {tokens.vocab_size} tokens"
        )
    device = slots_R.device
    if device.type != "cuda":
        reference.fill_masks(slots_R, states, pool_W, tokens, masks_RW, mask_rows_R)
    elif num_rows:
        library(SPEC, device.index).octavo_fill_masks(
            slots_R.data_ptr(),
            num_rows,
            *_pointers(states),
            pool_W.data_ptr(),
            tokens.order_GL.data_ptr(),
            tokens.word_starts_G.data_ptr(),
            tokens.words_M.data_ptr(),
            -(-tokens.vocab_size // WINDOW),
            masks_RW.data_ptr(),
            num_words,
            mask_rows_R.data_ptr(),
            _num_sms(device.index),
            stream_of(device.index),
        )


def walk_(
    slots_R: Tensor,
    tokens_R: Tensor,
    states: AutomatonStates,
    pool_W: Tensor,
    tokens: TokenTable,
    *,
    behind: tuple[AutomatonStates, Tensor] | None = None,
) -> None:
    """Move the slots with an automaton to where the sampled tokens lead.

    A stop token stays where the text may end. Where a token may not come, state becomes -1 and
    depth and stack are those before it. A slot may stand in several rows only if it has no
    automaton. ``behind`` are other places to begin at, and which is a row's: what
    ``walk_drafts`` found.
    """
    lists = {} if behind is None else {"lines": behind[1]}
    _check("walk_", states, pool_W, tokens, slots=slots_R, tokens=tokens_R, **lists)
    device = slots_R.device
    if device.type != "cuda":
        reference.walk_(slots_R, tokens_R, states, pool_W, tokens, behind)
    elif len(slots_R):
        origin, lines_R = (states, None) if behind is None else behind
        library(SPEC, device.index).octavo_walk_automata(
            slots_R.data_ptr(),
            tokens_R.data_ptr(),
            None if lines_R is None else lines_R.data_ptr(),
            len(slots_R),
            *_pointers(origin),
            *_pointers(states),
            pool_W.data_ptr(),
            *_texts(tokens),
            stream_of(device.index),
        )


def walk_drafts(
    slots_R: Tensor,
    ahead_R: Tensor,
    tokens_SL: Tensor,
    num_tokens_S: Tensor,
    states: AutomatonStates,
    pool_W: Tensor,
    tokens: TokenTable,
) -> AutomatonStates:
    """Where each row's slot would stand behind the first ``ahead_R`` of its drafts, line by row.

    Drafts are what ``tokens_SL`` has from ``num_tokens_S`` on; behind one that may not come the
    state is -1. ``fill_masks`` takes the lines as slots.
    """
    _check("walk_drafts", states, pool_W, tokens, slots=slots_R, ahead=ahead_R)
    lines = AutomatonStates.empty(len(slots_R), slots_R.device)
    device = slots_R.device
    if device.type != "cuda":
        reference.walk_drafts(
            *(slots_R, ahead_R, tokens_SL, num_tokens_S, states, pool_W, tokens, lines)
        )
    elif len(slots_R):
        library(SPEC, device.index).octavo_walk_drafts(
            slots_R.data_ptr(),
            ahead_R.data_ptr(),
            len(slots_R),
            tokens_SL.data_ptr(),
            num_tokens_S.data_ptr(),
            tokens_SL.shape[1],
            *_pointers(states),
            *_pointers(lines),
            pool_W.data_ptr(),
            *_texts(tokens),
            stream_of(device.index),
        )
    return lines


def _texts(tokens: TokenTable) -> tuple[int, ...]:
    return (
        tokens.bytes_N.data_ptr(),
        tokens.starts_V1.data_ptr(),
        tokens.vocab_size,
        tokens.stops_K.data_ptr(),
        len(tokens.stops_K),
    )


def _pointers(states: AutomatonStates) -> tuple[int, ...]:
    tensors = (states.at_S, states.state_S, states.depth_S, states.stack_SD)
    return tuple(tensor.data_ptr() for tensor in tensors)


@functools.cache
def _num_sms(device_index: int) -> int:
    return int(torch.cuda.get_device_properties(device_index).multi_processor_count)


def _check(
    function: str, states: AutomatonStates, pool_W: Tensor, tokens: TokenTable, /, **lists: Tensor
) -> None:
    num_rows = len(lists["slots"])
    slots = {"at": states.at_S, "state": states.state_S, "depth": states.depth_S}
    for name, tensor in {**lists, **slots, "pool": pool_W}.items():
        if tensor.dtype is not torch.int32 or tensor.dim() != 1 or not tensor.is_contiguous():
            raise ValueError(
                f"{function}: {name} is {tensor.dtype} {list(tensor.shape)} of strides "
                f"{tensor.stride()}; it must be a list of int32"
            )
        if name in lists and len(tensor) != num_rows:
            raise ValueError(f"{function}: {name} has {len(tensor)} rows; there are {num_rows}")
    stack_SD = states.stack_SD
    if stack_SD.dtype is not torch.int32 or not stack_SD.is_contiguous():
        raise ValueError(
            f"{function}: stacks are {stack_SD.dtype} of strides {stack_SD.stride()}; they must be "
            "contiguous int32"
        )
    if stack_SD.shape != (len(states.at_S), MOST_DEPTH):
        raise ValueError(
            f"{function}: stacks {list(stack_SD.shape)} are not of {len(states.at_S)} slots and "
            f"{MOST_DEPTH} states"
        )
    devices = {tensor.device for tensor in (stack_SD, pool_W, tokens.starts_V1, *lists.values())}
    if len(devices) > 1:
        raise ValueError(f"{function}: tensors are on {', '.join(sorted(map(str, devices)))}")


__all__ = [
    "MAX_ROWS",
    "MOST_DEPTH",
    "MOST_HOPS",
    "SPEC",
    "AutomatonStates",
    "TokenTable",
    "fill_masks",
    "walk_",
    "walk_drafts",
]
