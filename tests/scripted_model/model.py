"""Each row may go on with one token only: the next of the answer that its prompt has in a script.

Axis suffixes: T tokens of the step, R rows, S slots, L tokens of a slot, V vocabulary. Nothing
attends to anything, so a prompt of 20,000 tokens costs little more than to read it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from functools import lru_cache

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from octavo_registry import CacheSpec, MediaRows, ModelSpec, SequenceTokens, Step

BEGIN, END = "<|im_start|>assistant\n", "<|im_end|>"


class Scripted(nn.Module):
    """script.json has patterns and answers; the first pattern that a prompt has counts."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        assert spec.folder is not None
        self.unit = nn.Parameter(torch.empty(1, dtype=spec.dtype), requires_grad=False)
        self._vocab_size = spec.config["vocab_size"]
        self._tokenizer = Tokenizer.from_file(str(spec.folder / "tokenizer.json"))
        self._script = json.loads((spec.folder / "script.json").read_text())
        self._begin = self._encode(BEGIN)
        self._answer = lru_cache(maxsize=8)(self._find_answer)

    def cache_specs(self) -> dict[str, CacheSpec]:
        """An engine keeps something for each token; here nobody reads it."""
        return {"layer": CacheSpec.full(kv_heads=1, head_dim=8, dtype="float32")}

    def embed(self, tokens_T: Tensor, media: MediaRows | None) -> Tensor:
        return self.unit.expand(len(tokens_T), 1)

    def forward(self, x_TD: Tensor, step: Step) -> Tensor:
        return x_TD

    def logits(self, hidden_RD: Tensor) -> Tensor:
        return hidden_RD.new_zeros(len(hidden_RD), self._vocab_size)

    def load(self, tensors: Iterable[tuple[str, Tensor]]) -> set[str]:
        for _, tensor in tensors:
            self.unit.copy_(tensor)
        return {"unit"}

    def rule_out(self, logits_RV: Tensor, slots_R: Tensor, so_far: SequenceTokens) -> Tensor:
        only_RV = torch.full_like(logits_RV, float("-inf"))
        for row, slot in enumerate(slots_R.tolist()):
            ids = so_far.tokens_SL[slot, : so_far.num_tokens_S[slot]].tolist()
            only_RV[row, self._next(ids)] = 0.0
        return only_RV

    def _next(self, ids: list[int]) -> int:
        size = len(self._begin)
        starts = range(len(ids) - size, -1, -1)
        end = size + next(i for i in starts if ids[i : i + size] == self._begin)
        answer = self._answer(tuple(ids[:end]))
        return answer[min(len(ids) - end, len(answer) - 1)]  # a step may run behind the end

    def _find_answer(self, prompt: tuple[int, ...]) -> list[int]:
        text = self._tokenizer.decode(prompt, skip_special_tokens=False)
        found = (answer for pattern, answer in self._script if re.search(pattern, text, re.DOTALL))
        return self._encode(next(found, "There is no answer to this.") + END)

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids
