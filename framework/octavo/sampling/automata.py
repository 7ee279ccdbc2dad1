"""Byte automata on the device, and the masks that it makes of them.

Axis suffixes: S slots, R rows that sample, W words.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from octavo.steps.device_state import DeviceState
from octavo.steps.loads import POOL_WORDS, AutomatonLoad, AutomatonTokens
from octavo.steps.uploads import upload
from octavo_kernels.byte_automaton import TokenTable, fill_masks, walk_

TOKEN_BYTES = 32
"""What the table has for each token: its text, and where that begins."""


def masks_on(device: torch.device) -> bool:
    """Whether masks are made there sooner than on the host; a CPU makes them all the same."""
    return device.type == "cuda"


def automaton_bytes(num_slots: int, vocab_size: int) -> int:
    """What the first automaton brings to the device."""
    return 4 * (POOL_WORDS + num_slots * (1 + mask_words(vocab_size))) + TOKEN_BYTES * vocab_size


def mask_words(vocab_size: int) -> int:
    """Words of one row's mask."""
    return (vocab_size + 31) // 32


@dataclass(frozen=True, slots=True)
class _Memory:
    tokens: TokenTable
    pool_W: Tensor
    masks_RW: Tensor
    mask_rows_R: Tensor


class DeviceAutomata:
    """The pool and what goes with it; all recordings of steps use the same memory.

    It is made when the first automaton comes, so that an engine that meets none goes without.
    """

    def __init__(self, state: DeviceState, vocab_size: int) -> None:
        self._state = state
        self._vocab_size = vocab_size
        self._made: _Memory | None = None

    def load(self, load: AutomatonLoad) -> None:
        """Put an automaton where the scheduler says; steps launched earlier don't see it."""
        if self._made is None:
            self._made = self._make(load.vocabulary)
        words_W = load.words
        pool_W = self._made.pool_W
        pool_W[load.first : load.first + len(words_W)] = upload(words_W, pool_W.device)

    def masks(self, slots_R: Tensor) -> tuple[Tensor, Tensor]:
        """Which line of the masks is a row's, -1 for rows without an automaton, and the masks."""
        made, num_rows = self._memory, len(slots_R)
        mask_rows_R, masks_RW = made.mask_rows_R[:num_rows], made.masks_RW[:num_rows]
        fill_masks(slots_R, self._state.automata, made.pool_W, made.tokens, masks_RW, mask_rows_R)
        return mask_rows_R, masks_RW

    def walk(self, slots_R: Tensor, tokens_R: Tensor) -> None:
        """Let rows with an automaton take the tokens that they have sampled."""
        made = self._memory
        walk_(slots_R, tokens_R, self._state.automata, made.pool_W, made.tokens)

    @property
    def _memory(self) -> _Memory:
        if self._made is None:
            raise RuntimeError("a row has an automaton, and none was loaded")
        return self._made

    def _make(self, vocabulary: AutomatonTokens) -> _Memory:
        device, num_rows = self._state.arena.device, self._state.layout.num_slots
        return _Memory(
            tokens=TokenTable.of(
                vocabulary.token_bytes, vocabulary.stop_token_ids, self._vocab_size, device
            ),
            pool_W=torch.zeros(POOL_WORDS, dtype=torch.int32, device=device),
            masks_RW=torch.zeros(
                (num_rows, mask_words(self._vocab_size)), dtype=torch.int32, device=device
            ),
            mask_rows_R=torch.zeros(num_rows, dtype=torch.int32, device=device),
        )
