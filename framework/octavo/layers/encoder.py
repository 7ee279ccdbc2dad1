"""Encoders of texts whose norms come behind what they normalise, as BERT's do.

Axis suffixes: T tokens, D hidden.
"""

from __future__ import annotations

from torch import Tensor, nn

from octavo.errors import ModelError
from octavo.layers.attention import Attention
from octavo.layers.embedding import PositionEmbedding, VocabParallelEmbedding
from octavo.layers.linear import ColumnParallelLinear, QKVLinear, RowParallelLinear
from octavo.layers.mlp import activation_of
from octavo.layers.norm import LayerNorm
from octavo_registry.model import ModelSpec
from octavo_registry.step import Step


class TextEmbeddings(nn.Module):
    """Vectors of tokens, positions and token types, added and normalised.

    The checkpoint has ``offset`` rows of positions that no text reaches.
    """

    def __init__(self, name: str, spec: ModelSpec, *, offset: int = 0) -> None:
        super().__init__()
        config = spec.config
        hidden_size = config["hidden_size"]
        kind = config.get("position_embedding_type") or "absolute"
        if kind != "absolute":
            raise ModelError(
                f"position_embedding_type={kind!r} in config.json is not known; known: 'absolute'"
            )
        self.word_embeddings = VocabParallelEmbedding(
            f"{name}.word_embeddings", config["vocab_size"], hidden_size, spec=spec
        )
        self.position_embeddings = PositionEmbedding(
            f"{name}.position_embeddings",
            config["max_position_embeddings"] - offset,
            hidden_size,
            spec=spec,
            offset=offset,
        )
        self.token_type_embeddings = PositionEmbedding(
            f"{name}.token_type_embeddings", config["type_vocab_size"], hidden_size, spec=spec
        )
        self.LayerNorm = layer_norm(f"{name}.LayerNorm", spec)

    def add_places(self, x_TD: Tensor, step: Step) -> Tensor:
        """What goes into the first layer; x is that of the words."""
        x_TD += self.position_embeddings(step.positions_AT[0])
        if step.token_types_T is None:
            x_TD += self.token_type_embeddings.weight[0]
        else:
            x_TD += self.token_type_embeddings(step.token_types_T)
        normed_TD: Tensor = self.LayerNorm(x_TD)
        return normed_TD


class PostNormLayer(nn.Module):
    """Attention and a feed-forward layer, each added to what it read, and normalised."""

    def __init__(self, name: str, spec: ModelSpec) -> None:
        super().__init__()
        config = spec.config
        hidden_size, heads = config["hidden_size"], config["num_attention_heads"]
        self.qkv = QKVLinear(
            f"{name}.attention.self.qkv",
            hidden_size,
            heads=heads,
            kv_heads=heads,
            head_dim=hidden_size // heads,
            bias=True,
            spec=spec,
            names=("query", "key", "value"),
        )
        self.attention = Attention(
            f"{name}.attention",
            kv_heads=self.qkv.kv_heads,
            head_dim=hidden_size // heads,
            spec=spec,
        )
        self.attention_output = RowParallelLinear(
            f"{name}.attention.output.dense", hidden_size, hidden_size, bias=True, spec=spec
        )
        self.attention_norm = layer_norm(f"{name}.attention.output.LayerNorm", spec)
        inner_size = config["intermediate_size"]
        self._activation = activation_of(config["hidden_act"], name)
        self.intermediate = ColumnParallelLinear(
            f"{name}.intermediate.dense", hidden_size, {"dense": inner_size}, bias=True, spec=spec
        )
        self.output = RowParallelLinear(
            f"{name}.output.dense", inner_size, hidden_size, bias=True, spec=spec
        )
        self.output_norm = layer_norm(f"{name}.output.LayerNorm", spec)

    def forward(self, x_TD: Tensor, step: Step) -> Tensor:
        """The hidden state after this layer; x is overwritten."""
        heads_THD = self.attention(*self.qkv.heads_of(x_TD), step)
        x_TD = self.attention_norm(self.attention_output.add_to(x_TD, heads_THD.flatten(1)))
        inner_TD = self._activation(self.intermediate(x_TD))
        normed_TD: Tensor = self.output_norm(self.output.add_to(x_TD, inner_TD))
        return normed_TD


def layer_norm(name: str, spec: ModelSpec) -> LayerNorm:
    """A norm of the hidden state."""
    eps = float(spec.config["layer_norm_eps"])
    return LayerNorm(name, spec.config["hidden_size"], eps, spec=spec)
