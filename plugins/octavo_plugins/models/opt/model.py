"""OPT: learned positions, layer norms before (or behind) attention and MLP, biases.

Axis suffixes: T tokens, D hidden, E token embedding.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor, nn

from octavo.execution.workspace import forward_formula
from octavo.layers.attention import Attention
from octavo.layers.embedding import PositionEmbedding, VocabParallelEmbedding
from octavo.layers.language_model import LanguageModel
from octavo.layers.linear import (
    ColumnParallelLinear,
    QKVLinear,
    ReplicatedLinear,
    RowParallelLinear,
)
from octavo.layers.mlp import activation_of
from octavo.layers.norm import LayerNorm
from octavo.layers.sharding import Stage
from octavo_registry.model import ModelSpec
from octavo_registry.step import MediaRows, Step

UNUSED_POSITIONS = 2
"""Rows of the checkpoint's position embedding before that of the first position."""
NORM_EPS = 1e-5


class OPT(LanguageModel):
    """OPTForCausalLM."""

    def __init__(self, spec: ModelSpec) -> None:
        config = spec.config
        super().__init__(
            spec,
            num_layers=config["num_hidden_layers"],
            tied=config.get("tie_word_embeddings", True),
        )
        self.model = nn.ModuleDict({"decoder": Decoder(spec, self.stage)})
        self.add_head(
            spec,
            embedding_size_of(config),
            "model.decoder.embed_tokens",
            self.decoder.embed_tokens if self.stage.is_first else None,
        )
        activates_in_place = config.get("activation_function", "relu") == "relu"
        self._forward_bytes = forward_formula(
            config,
            item_bytes=spec.dtype.itemsize,
            tp_size=spec.tp_size,
            feed_forward_copies=1 if activates_in_place else 2,
        )

    @property
    def decoder(self) -> Decoder:
        """All but the head."""
        decoder = self.model["decoder"]
        assert isinstance(decoder, Decoder)
        return decoder

    def embed(self, tokens_T: Tensor, media: MediaRows | None) -> Tensor:
        """The input embedding without positions; only on the first stage."""
        x_TE: Tensor = self.decoder.embed_tokens(tokens_T)
        project = self.decoder.project_in
        return x_TE if project is None else project(x_TE)

    def forward(self, x_TD: Tensor, step: Step) -> Tensor:
        """This stage's layers; the first one adds positions, the last one also normalises."""
        out_TD: Tensor = self.decoder(x_TD, step)
        return out_TD

    def workspace_bytes(self, num_tokens: int) -> int:
        """See ``HasWorkspace``."""
        return self._forward_bytes(num_tokens)

    def load(self, tensors: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Fill this stage's parameters; some checkpoints are those of the model without a head."""
        return super().load(
            (f"model.{name}" if name.startswith("decoder.") else name, tensor)
            for name, tensor in tensors
        )


class Decoder(nn.Module):
    """What checkpoints call ``model.decoder``."""

    def __init__(self, spec: ModelSpec, stage: Stage) -> None:
        super().__init__()
        config, name = spec.config, "model.decoder"
        hidden_size, embedding_size = config["hidden_size"], embedding_size_of(config)
        projects = embedding_size != hidden_size
        self.stage = stage
        self.project_in: ReplicatedLinear | None = None
        self.final_layer_norm: LayerNorm | None = None
        self.project_out: ReplicatedLinear | None = None
        if stage.is_first:
            self.embed_tokens = VocabParallelEmbedding(
                f"{name}.embed_tokens", config["vocab_size"], embedding_size, spec=spec
            )
            self.embed_positions = PositionEmbedding(
                f"{name}.embed_positions",
                config["max_position_embeddings"],
                hidden_size,
                spec=spec,
                offset=UNUSED_POSITIONS,
            )
            if projects:
                self.project_in = ReplicatedLinear(
                    f"{name}.project_in", embedding_size, hidden_size, bias=False, spec=spec
                )
        self.layers = nn.ModuleDict({str(i): DecoderLayer(spec, i) for i in stage.layers})
        if stage.is_last:
            if config.get("do_layer_norm_before", True) and not config.get(
                "_remove_final_layer_norm", False
            ):
                self.final_layer_norm = layer_norm(f"{name}.final_layer_norm", spec)
            if projects:
                self.project_out = ReplicatedLinear(
                    f"{name}.project_out", hidden_size, embedding_size, bias=False, spec=spec
                )

    def forward(self, x_TD: Tensor, step: Step) -> Tensor:
        """The residual stream after this stage, or what the head takes."""
        if self.stage.is_first:
            x_TD = x_TD + self.embed_positions(step.positions_AT[0])
        for layer in self.layers.values():
            x_TD = layer(x_TD, step)
        for last in (self.final_layer_norm, self.project_out):
            x_TD = x_TD if last is None else last(x_TD)
        return x_TD


class DecoderLayer(nn.Module):
    """Attention and MLP, each added to the residual stream, with a norm before it or behind."""

    def __init__(self, spec: ModelSpec, index: int) -> None:
        super().__init__()
        config, name = spec.config, f"model.decoder.layers.{index}"
        hidden_size, inner_size = config["hidden_size"], config["ffn_dim"]
        bias = config.get("enable_bias", True)
        self._norms_before = config.get("do_layer_norm_before", True)
        self._activation = activation_of(config.get("activation_function", "relu"), name)
        self.self_attn = SelfAttention(f"{name}.self_attn", spec, bias=bias)
        self.self_attn_layer_norm = layer_norm(f"{name}.self_attn_layer_norm", spec)
        self.fc1 = ColumnParallelLinear(
            f"{name}.fc1", hidden_size, {"fc1": inner_size}, bias=bias, spec=spec
        )
        self.fc2 = RowParallelLinear(f"{name}.fc2", inner_size, hidden_size, bias=bias, spec=spec)
        self.final_layer_norm = layer_norm(f"{name}.final_layer_norm", spec)

    def forward(self, x_TD: Tensor, step: Step) -> Tensor:
        """The residual stream after this layer."""
        if self._norms_before:
            self.self_attn.add_to(x_TD, self.self_attn_layer_norm(x_TD), step)
            return self._add_mlp_to(x_TD, self.final_layer_norm(x_TD))
        x_TD = self.self_attn_layer_norm(self.self_attn.add_to(x_TD, x_TD, step))
        normed_TD: Tensor = self.final_layer_norm(self._add_mlp_to(x_TD, x_TD))
        return normed_TD

    def _add_mlp_to(self, residual_TD: Tensor, x_TD: Tensor) -> Tensor:
        return self.fc2.add_to(residual_TD, self._activation(self.fc1(x_TD)))


class SelfAttention(nn.Module):
    """Projections around the attention over the cache; each head has its own keys and values."""

    def __init__(self, name: str, spec: ModelSpec, *, bias: bool) -> None:
        super().__init__()
        hidden_size, heads = spec.config["hidden_size"], spec.config["num_attention_heads"]
        head_dim = hidden_size // heads
        self.qkv_proj = QKVLinear(
            f"{name}.qkv_proj",
            hidden_size,
            heads=heads,
            kv_heads=heads,
            head_dim=head_dim,
            bias=bias,
            spec=spec,
        )
        self.attention = Attention(
            f"{name}.attention", kv_heads=self.qkv_proj.kv_heads, head_dim=head_dim, spec=spec
        )
        self.out_proj = RowParallelLinear(
            f"{name}.out_proj", hidden_size, hidden_size, bias=bias, spec=spec
        )

    def add_to(self, residual_TD: Tensor, x_TD: Tensor, step: Step) -> Tensor:
        """Add the layer's result for x to the residual stream in place, and return it."""
        out_THD = self.attention(*self.qkv_proj.heads_of(x_TD), step)
        return self.out_proj.add_to(residual_TD, out_THD.flatten(1))


def embedding_size_of(config: Mapping[str, Any]) -> int:
    """Entries of a token's embedding; projections stand around the layers where it is not D."""
    return int(config.get("word_embed_proj_dim") or config["hidden_size"])


def layer_norm(name: str, spec: ModelSpec) -> LayerNorm:
    """A norm of the hidden state; that of Galactica has no parameters."""
    affine = spec.config.get("layer_norm_elementwise_affine", True)
    return LayerNorm(name, spec.config["hidden_size"], NORM_EPS, spec=spec, affine=affine)
