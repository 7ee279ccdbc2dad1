"""Byte automata on the device, and the masks that it makes of them.

Axis suffixes: S slots, R rows that sample, W words.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from octavo.sampling.masks import TokenMask
from octavo.steps.device_state import DeviceState
from octavo.steps.loads import POOL_WORDS, AutomatonLoad, AutomatonTokens
from octavo.steps.sharing import SharedTokens
from octavo.steps.uploads import upload
from octavo_kernels.byte_automaton import (
    AutomatonStates,
    TokenTable,
    fill_masks,
    walk_,
    walk_drafts,
)

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

    def masks(self, slots_R: Tensor) -> TokenMask:
        """What may come in rows with an automaton."""
        made, num_rows = self._memory, len(slots_R)
        mask = TokenMask(made.mask_rows_R[:num_rows], made.masks_RW[:num_rows])
        self._fill(slots_R, self._state.automata, mask)
        return mask

    def masks_behind(self, places: AutomatonStates) -> TokenMask:
        """What may come in rows that stand at these places."""
        num_rows, num_words = len(places.at_S), self._memory.masks_RW.shape[1]
        mask_rows_R = torch.empty_like(places.at_S)
        mask = TokenMask(mask_rows_R, mask_rows_R.new_empty(num_rows, num_words))
        lines_R = torch.arange(num_rows, dtype=torch.int32, device=mask_rows_R.device)
        self._fill(lines_R, places, mask)
        return mask

    def behind(self, shared: SharedTokens) -> AutomatonStates:
        """Where the slots of rows of logits stand behind the drafts before these."""
        made, state = self._memory, self._state
        return walk_drafts(
            shared.slots_T,
            shared.ahead_T,
            state["tokens"],
            state["num_tokens"],
            state.automata,
            made.pool_W,
            made.tokens,
        )

    def walk(
        self,
        slots_R: Tensor,
        tokens_R: Tensor,
        behind: tuple[AutomatonStates, Tensor] | None = None,
    ) -> None:
        """Let rows with an automaton take the tokens that they have sampled.

        ``behind`` are places where they stand, and whose is which, if that is not in the state.
        """
        made = self._memory
        walk_(slots_R, tokens_R, self._state.automata, made.pool_W, made.tokens, behind=behind)

    def _fill(self, slots_R: Tensor, states: AutomatonStates, mask: TokenMask) -> None:
        made = self._memory
        fill_masks(slots_R, states, made.pool_W, made.tokens, mask.bits_MW, mask.lines_R)

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
