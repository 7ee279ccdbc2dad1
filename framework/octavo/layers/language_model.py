"""What all decoder-only language models share: pipeline stages, tied embeddings, loading.

Axis suffixes: D hidden, R rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from octavo.layers.attention import cache_specs
from octavo.layers.embedding import VocabParallelEmbedding
from octavo.layers.loading import load_weights
from octavo.layers.logits import LMHead
from octavo.layers.sharding import Stage
from octavo_registry.cache import CacheSpec
from octavo_registry.model import ModelSpec


class LanguageModel(nn.Module):
    """Some decoder between an input and an output embedding, which may be one.

    A subclass builds its decoder, calls ``add_head``, and brings ``embed`` and ``forward``.
    """

    def __init__(self, spec: ModelSpec, *, num_layers: int, tied: bool) -> None:
        super().__init__()
        self.stage = Stage.of(spec, num_layers)
        self._is_tied = tied

    def add_head(
        self,
        spec: ModelSpec,
        hidden_size: int,
        embedding_name: str,
        embedding: VocabParallelEmbedding | None,
        *,
        softcap: float | None = None,
    ) -> None:
        """Make the output embedding on the last stage.

        The input embedding, with its full name, becomes that of a tied model where it is here too.
        """
        if self.stage.is_last:
            self.lm_head = LMHead(
                "lm_head",
                spec.config["vocab_size"],
                hidden_size,
                spec=spec,
                checkpoint_name=embedding_name if self._is_tied else None,
                tied_to=embedding if self._is_tied else None,
                softcap=softcap,
            )

    def cache_specs(self) -> dict[str, CacheSpec]:
        """The cache of each attention layer."""
        return cache_specs(self)

    def logits(self, hidden_RD: Tensor) -> Tensor:
        """The output embedding; only on the last stage."""
        logits_RV: Tensor = self.lm_head(hidden_RD)
        return logits_RV

    def load(self, tensors: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Fill this stage's parameters from a Hugging Face checkpoint."""
        return load_weights(self, tensors, ignore=self.is_not_needed)

    def is_not_needed(self, name: str) -> bool:
        """Whether a checkpoint tensor that no layer wants may be there all the same."""
        if name.endswith(".rotary_emb.inv_freq"):  # old checkpoints; it follows from config.json
            return True
        return self.stage.is_elsewhere(name) or (self._is_tied and name == "lm_head.weight")


def with_defaults(spec: ModelSpec, **entries: Any) -> ModelSpec:
    """A spec with what Transformers takes for entries that its config.json lacks."""
    return replace(spec, config={**entries, **spec.config})
