"""GPT-2: learned positions, layer norms before attention and MLP, weights stored as [in, out].

Axis suffixes: T tokens, D hidden.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn

from octavo.errors import ModelError
from octavo.execution.workspace import forward_formula
from octavo.layers.attention import Attention
from octavo.layers.embedding import PositionEmbedding, VocabParallelEmbedding
from octavo.layers.language_model import LanguageModel
from octavo.layers.linear import ColumnParallelLinear, QKVLinear, RowParallelLinear
from octavo.layers.mlp import activation_of
from octavo.layers.norm import LayerNorm
from octavo.layers.sharding import Stage
from octavo_registry.model import ModelSpec
from octavo_registry.step import MediaRows, Step


class GPT2(LanguageModel):
    """GPT2LMHeadModel."""

    def __init__(self, spec: ModelSpec) -> None:
        config = spec.config
        if config.get("add_cross_attention"):
            raise ModelError(
                f"{spec.architecture} with add_cross_attention in config.json reads an encoder's "
                "output, and there is none here; only the decoder alone can be run"
            )
        super().__init__(
            spec, num_layers=config["n_layer"], tied=config.get("tie_word_embeddings", True)
        )
        self.transformer = Decoder(spec, self.stage)
        self.add_head(
            spec,
            config["n_embd"],
            "transformer.wte",
            self.transformer.wte if self.stage.is_first else None,
        )
        self._forward_bytes = forward_formula(
            config,
            item_bytes=spec.dtype.itemsize,
            tp_size=spec.tp_size,
            feed_forward_copies=2,  # what is activated, and the result
            adds_in_place=spec.tp_size == 1,
        )

    def embed(self, tokens_T: Tensor, media: MediaRows | None) -> Tensor:
        """The input embedding without positions; only on the first stage."""
        x_TD: Tensor = self.transformer.wte(tokens_T)
        return x_TD

    def forward(self, x_TD: Tensor, step: Step) -> Tensor:
        """This stage's layers; the first one adds positions, the last one also normalises."""
        if self.stage.is_first:
            x_TD = x_TD + self.transformer.wpe(step.positions_AT[0])
        for layer in self.transformer.h.values():
            x_TD = layer(x_TD, step)
        return self.transformer.ln_f(x_TD) if self.stage.is_last else x_TD

    def load(self, tensors: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Fill this stage's parameters; some checkpoints are those of the model without a head."""
        return super().load(
            (name if name.startswith(("transformer.", "lm_head.")) else f"transformer.{name}", it)
            for name, it in tensors
        )

    def workspace_bytes(self, num_tokens: int) -> int:
        """See ``HasWorkspace``."""
        return self._forward_bytes(num_tokens)

    def is_not_needed(self, name: str) -> bool:
        """Old checkpoints hold masks."""
        return name.endswith((".attn.bias", ".attn.masked_bias")) or super().is_not_needed(name)


class Decoder(nn.Module):
    """What checkpoints call ``transformer``."""

    def __init__(self, spec: ModelSpec, stage: Stage) -> None:
        super().__init__()
        config, name = spec.config, "transformer"
        hidden_size = config["n_embd"]
        if stage.is_first:
            self.wte = VocabParallelEmbedding(
                f"{name}.wte", config["vocab_size"], hidden_size, spec=spec
            )
            self.wpe = PositionEmbedding(
                f"{name}.wpe", config["n_positions"], hidden_size, spec=spec
            )
        self.h = nn.ModuleDict({str(i): DecoderLayer(spec, i) for i in stage.layers})
        if stage.is_last:
            self.ln_f = layer_norm(f"{name}.ln_f", spec)


class DecoderLayer(nn.Module):
    """Attention and MLP, each behind its norm and added to the residual stream."""

    def __init__(self, spec: ModelSpec, index: int) -> None:
        super().__init__()
        name = f"transformer.h.{index}"
        self.ln_1 = layer_norm(f"{name}.ln_1", spec)
        self.attn = SelfAttention(f"{name}.attn", spec, index)
        self.ln_2 = layer_norm(f"{name}.ln_2", spec)
        self.mlp = MLP(f"{name}.mlp", spec)

    def forward(self, x_TD: Tensor, step: Step) -> Tensor:
        """The residual stream after this layer, in place."""
        self.attn.add_to(x_TD, self.ln_1(x_TD), step)
        return self.mlp.add_to(x_TD, self.ln_2(x_TD))


class SelfAttention(nn.Module):
    """Projections around the attention over the cache; each head has its own keys and values."""

    def __init__(self, name: str, spec: ModelSpec, index: int) -> None:
        super().__init__()
        config = spec.config
        hidden_size, heads = config["n_embd"], config["n_head"]
        head_dim = hidden_size // heads
        self.c_attn = QKVLinear(
            f"{name}.c_attn",
            hidden_size,
            heads=heads,
            kv_heads=heads,
            head_dim=head_dim,
            bias=True,
            spec=spec,
            stored_fused=True,
            transposed=True,
        )
        scale = head_dim**-0.5 if config.get("scale_attn_weights", True) else 1.0
        if config.get("scale_attn_by_inverse_layer_idx", False):
            scale /= index + 1
        self.attention = Attention(
            f"{name}.attention",
            kv_heads=self.c_attn.kv_heads,
            head_dim=head_dim,
            spec=spec,
            scale=scale,
        )
        self.c_proj = RowParallelLinear(
            f"{name}.c_proj", hidden_size, hidden_size, bias=True, spec=spec, transposed=True
        )

    def add_to(self, residual_TD: Tensor, x_TD: Tensor, step: Step) -> Tensor:
        """Add the layer's result for x to the residual stream in place, and return it."""
        out_THD = self.attention(*self.c_attn.heads_of(x_TD), step)
        return self.c_proj.add_to(residual_TD, out_THD.flatten(1))


class MLP(nn.Module):
    """Two linears around an activation."""

    def __init__(self, name: str, spec: ModelSpec) -> None:
        super().__init__()
        config = spec.config
        hidden_size = config["n_embd"]
        inner_size = config.get("n_inner") or 4 * hidden_size
        self._activation = activation_of(config.get("activation_function", "gelu_new"), name)
        self.c_fc = ColumnParallelLinear(
            f"{name}.c_fc",
            hidden_size,
            {"c_fc": inner_size},
            bias=True,
            spec=spec,
            transposed=True,
        )
        self.c_proj = RowParallelLinear(
            f"{name}.c_proj", inner_size, hidden_size, bias=True, spec=spec, transposed=True
        )

    def add_to(self, residual_TD: Tensor, x_TD: Tensor) -> Tensor:
        """Add the layer's result for x to the residual stream in place, and return it."""
        return self.c_proj.add_to(residual_TD, self._activation(self.c_fc(x_TD)))


def layer_norm(name: str, spec: ModelSpec) -> LayerNorm:
    """A norm of the hidden state."""
    eps = spec.config.get("layer_norm_epsilon", 1e-5)
    return LayerNorm(name, spec.config["n_embd"], eps, spec=spec)
