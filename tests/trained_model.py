"""A small Llama that has learnt something, so that its likeliest token is likely by far.

Each token of its language follows from the last one and the one five back, by a random table: so
attention must find both. Random weights leave the best two logits so close that 16-bit rounding
alone changes one token in fifty, and would hide a small error.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

VOCAB_SIZE = 64
NUM_USED = 24
BACK = 5
LENGTH = 320


class Language:
    """Sequences in which each token follows from two before it."""

    def __init__(self, seed: int, device: str) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self._device = device
        self._next_UU = self._random(NUM_USED, NUM_USED)

    def sequences(self, count: int, length: int) -> Tensor:
        tokens = list(self._random(BACK, count))
        while len(tokens) < length:
            tokens.append(self._next_UU[tokens[-1], tokens[-BACK]])
        return torch.stack(tokens, dim=1)

    def _random(self, *shape: int) -> Tensor:
        return torch.randint(0, NUM_USED, shape, generator=self._generator).to(self._device)


def train(folder: Path, *, device: str = "cuda", steps: int = 250) -> Language:
    """Write the model's folder, in float32; returns its language."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        bos_token_id=62,
        eos_token_id=63,
    )
    model = LlamaForCausalLM(config).to(device)
    language = Language(1, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
    for step in range(steps):
        # Short ones first: the rule is found in them, and then holds at all positions.
        tokens = language.sequences(64, 48 if step < steps // 2 else LENGTH)
        logits = model(tokens).logits[:, BACK - 1 : -1]
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, BACK:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    assert loss.item() < 0.05, f"the model has not learnt its language: loss {loss.item():.3f}"
    model.to("cpu").save_pretrained(folder)
    return language
