"""BERT and RoBERTa: every token sees all of its text.

Axis suffixes: T tokens, D hidden.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torch import Tensor, nn

from octavo.layers.attention import cache_specs
from octavo.layers.encoder import PostNormLayer, TextEmbeddings
from octavo.layers.language_model import with_defaults
from octavo.layers.loading import load_weights
from octavo.model_folder.context_length import PAD_TOKEN_ID
from octavo_registry.cache import CacheSpec
from octavo_registry.model import ModelSpec
from octavo_registry.step import MediaRows, Step

PREFIXES = ("bert.", "roberta.")
HEADS = ("pooler.", "cls.", "lm_head.")
"""Parts of checkpoints that embedders do without."""


class Bert(nn.Module):
    """BertModel."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        spec = with_defaults(spec, hidden_act="gelu", layer_norm_eps=1e-12, type_vocab_size=2)
        self.embeddings = TextEmbeddings("embeddings", spec, offset=self.position_offset(spec))
        self.layers = nn.ModuleList(
            PostNormLayer(f"encoder.layer.{i}", spec)
            for i in range(spec.config["num_hidden_layers"])
        )

    @staticmethod
    def position_offset(spec: ModelSpec) -> int:
        """Rows of the positions before that of a text's first token."""
        return 0

    def cache_specs(self) -> dict[str, CacheSpec]:
        """Keys of each layer."""
        return cache_specs(self)

    def embed(self, tokens_T: Tensor, media: MediaRows | None) -> Tensor:
        """The words alone."""
        x_TD: Tensor = self.embeddings.word_embeddings(tokens_T)
        return x_TD

    def forward(self, x_TD: Tensor, step: Step) -> Tensor:
        """The hidden states behind the last norm."""
        x_TD = self.embeddings.add_places(x_TD, step)
        for layer in self.layers:
            x_TD = layer(x_TD, step)
        return x_TD

    def load(self, tensors: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Fill the parameters; some checkpoints are those of the model with a head."""
        return load_weights(self, _named(tensors), ignore=_is_not_needed)


class Roberta(Bert):
    """RobertaModel and XLMRobertaModel, whose positions begin behind that of the padding."""

    @staticmethod
    def position_offset(spec: ModelSpec) -> int:
        """The padding's row is the last of those that no text reaches."""
        pad = spec.config.get("pad_token_id")
        return 1 + int(PAD_TOKEN_ID if pad is None else pad)


def _named(tensors: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    for name, tensor in tensors:
        for prefix in PREFIXES:
            name = name.removeprefix(prefix)
        # Checkpoints that were TensorFlow's once have other names for what norms learn.
        name = name.replace("LayerNorm.gamma", "LayerNorm.weight")
        yield name.replace("LayerNorm.beta", "LayerNorm.bias"), tensor


def _is_not_needed(name: str) -> bool:
    return name.startswith(HEADS) or name.endswith(("position_ids", "token_type_ids"))
