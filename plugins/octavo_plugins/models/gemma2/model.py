"""Gemma 2: norms before and after attention and MLP, soft caps, windows on every other layer.

Axis suffixes: T tokens, D hidden, E entries of all heads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torch import Tensor

from octavo.errors import ModelError
from octavo.layers.attention import SelfAttention, head_dim_of, window_of
from octavo.layers.decoder import CausalLM, SerialLayer, layer_norm, rounded_to
from octavo.layers.mlp import GatedMLP
from octavo.layers.rotary import Angles, RotaryEmbedding
from octavo_registry.model import ModelSpec
from octavo_registry.step import Step


class Gemma2(CausalLM):
    """Gemma2ForCausalLM."""

    def __init__(self, spec: ModelSpec) -> None:
        config = spec.config
        refuse_bidirectional(spec)
        super().__init__(
            spec,
            decoder_layer,
            RotaryEmbedding(head_dim_of(config), spec=spec),
            tied=True,
            embedding_scale=rounded_to(spec.dtype, config["hidden_size"] ** 0.5),
            logit_softcap=config.get("final_logit_softcapping", 30.0),
        )

    def load(self, tensors: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Fill this stage's parameters from a Hugging Face checkpoint."""
        return super().load(with_whole_norms(tensors))


def decoder_layer(spec: ModelSpec, index: int) -> SandwichLayer:
    """Layers with and without a window take turns, if ``layer_types`` says nothing else."""
    config, name = spec.config, f"model.layers.{index}"
    attention = SelfAttention(
        f"{name}.self_attn",
        spec,
        window=window_of(config, index, pattern=2),
        scale=config.get("query_pre_attn_scalar", 256) ** -0.5,
        softcap=config.get("attn_logit_softcapping", 50.0),
        bias=config.get("attention_bias", False),
    )
    return SandwichLayer(name, spec, attention)


class SandwichLayer(SerialLayer):
    """Attention and MLP, each between two norms, added to the residual stream."""

    def __init__(self, name: str, spec: ModelSpec, attention: SelfAttention) -> None:
        super().__init__()
        config = spec.config
        self.input_layernorm = layer_norm(f"{name}.input_layernorm", spec)
        self.self_attn = attention
        self.post_attention_layernorm = layer_norm(f"{name}.post_attention_layernorm", spec)
        self.pre_feedforward_layernorm = layer_norm(f"{name}.pre_feedforward_layernorm", spec)
        self.mlp = GatedMLP(
            f"{name}.mlp",
            config["hidden_size"],
            config["intermediate_size"],
            activation=config.get("hidden_activation") or "gelu_pytorch_tanh",
            bias=False,
            spec=spec,
        )
        self.post_feedforward_layernorm = layer_norm(f"{name}.post_feedforward_layernorm", spec)

    def attend(self, x_TD: Tensor, angles: Angles, step: Step) -> Tensor:
        """See ``SerialLayer``."""
        return self.self_attn.attend(self.input_layernorm(x_TD), angles, step)

    def add_attention(self, x_TD: Tensor, heads_TE: Tensor) -> None:
        """See ``SerialLayer``."""
        x_TD.add_(self.post_attention_layernorm(self.self_attn.o_proj(heads_TE)))

    def add_feed_forward(self, x_TD: Tensor) -> Tensor:
        """See ``SerialLayer``."""
        # No names for what lies between: nothing then outlives its use.
        return x_TD.add_(
            self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(x_TD)))
        )


def with_whole_norms(tensors: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """A Gemma checkpoint with the ones added that it leaves out of the weights of its norms.

    They are added once, here, so that the same kernels run as for other models.
    """
    for name, tensor in tensors:
        yield name, tensor.float() + 1.0 if name.endswith("norm.weight") else tensor


def refuse_bidirectional(spec: ModelSpec) -> None:
    """Embedding models have Gemma's architecture, but attention that sees what comes later."""
    if spec.config.get("use_bidirectional_attention"):
        raise ModelError(
            f"{spec.architecture} with use_bidirectional_attention in config.json is no model that "
            "generates; causal attention is all there is here"
        )
