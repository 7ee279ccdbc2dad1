"""Hugging Face transformers' generate: static batches on random weights of its own."""

from __future__ import annotations

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks.compare.workloads import Engine, Prompts


class Transformers:
    max_requests: int | None = 32
    """At 40 ms a step, whatever the batch, the larger workloads would take hours."""

    def __init__(self, folder: str) -> None:
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        config = AutoConfig.from_pretrained(folder)
        with self._device:
            model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        self._model = model.eval()

    @torch.inference_mode()
    def run(self, prompts: Prompts, num_tokens: int) -> Prompts:
        ids = torch.tensor(prompts, device=self._device)
        output = self._model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=num_tokens,
            min_new_tokens=num_tokens,
            pad_token_id=0,
        )
        tokens: Prompts = output[:, ids.shape[1] :].tolist()
        return tokens


def make(folder: str) -> Engine:
    return Transformers(folder)
