"""Decoders around their layers: embeddings, the final norm, pipeline stages.

Axis suffixes: T tokens, D hidden, R tokens whose logits are asked for, E entries of all heads,
V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from octavo.layers.attention import SelfAttention
from octavo.layers.embedding import VocabParallelEmbedding
from octavo.layers.language_model import LanguageModel
from octavo.layers.latent_attention import LatentAttention
from octavo.layers.mlp import GatedMLP
from octavo.layers.moe import MoE
from octavo.layers.norm import RMSNorm
from octavo.layers.rotary import Angles
from octavo.layers.sharding import Stage
from octavo_registry.model import ModelSpec
from octavo_registry.step import MediaRows, Step


class CausalLM(LanguageModel):
    """A model under the names that checkpoints of Transformers give its parts.

    ``layer(spec, index)`` makes a layer, which is called with the residual stream [T, D], the
    result of ``rotary`` for the step's positions, and the step; it returns the stream.
    """

    def __init__(
        self,
        spec: ModelSpec,
        layer: Callable[[ModelSpec, int], nn.Module],
        rotary: nn.Module,
        *,
        tied: bool = False,
        embedding_scale: float | None = None,
        logit_softcap: float | None = None,
    ) -> None:
        config = spec.config
        super().__init__(
            spec,
            num_layers=config["num_hidden_layers"],
            tied=bool(config.get("tie_word_embeddings", tied)),
        )
        self.model = Decoder(spec, self.stage, layer, rotary)
        self.embedding_scale = embedding_scale
        self.add_head(
            spec,
            config["hidden_size"],
            "model.embed_tokens",
            self.model.embed_tokens if self.stage.is_first else None,
            softcap=logit_softcap,
        )

    def embed(self, tokens_T: Tensor, media: MediaRows | None) -> Tensor:
        """The input embedding, or media's rows as they are; only on the first stage."""
        x_TD: Tensor = self.model.embed_tokens(tokens_T)
        if self.embedding_scale is not None:
            x_TD.mul_(self.embedding_scale)
        if media is not None:
            x_TD.index_copy_(0, media.tokens_M, media.rows_MW[:, : x_TD.shape[1]])
        return x_TD

    def forward(self, x_TD: Tensor, step: Step) -> Tensor:
        """This stage's layers; the last one also normalises."""
        angles = self.model.rotary(step.positions_AT.squeeze(0))
        for layer in self.model.layers.values():
            x_TD = layer(x_TD, angles, step)
        return self.model.norm(x_TD) if self.stage.is_last else x_TD


class Decoder(nn.Module):
    """What checkpoints call ``model``; layers are keyed by their number in the whole model."""

    def __init__(
        self,
        spec: ModelSpec,
        stage: Stage,
        layer: Callable[[ModelSpec, int], nn.Module],
        rotary: nn.Module,
    ) -> None:
        super().__init__()
        config = spec.config
        hidden_size = config["hidden_size"]
        if stage.is_first:
            self.embed_tokens = VocabParallelEmbedding(
                "model.embed_tokens", config["vocab_size"], hidden_size, spec=spec
            )
        self.rotary = rotary
        self.layers = nn.ModuleDict({str(i): layer(spec, i) for i in stage.layers})
        if stage.is_last:
            self.norm = layer_norm("model.norm", spec)
            last = self.layers[str(stage.layers[-1])]
            if isinstance(last, SerialLayer):
                last.is_last = True


class SerialLayer(nn.Module):
    """Attention, then a feed-forward layer, each added to the residual stream.

    What comes behind the heads looks at each token alone. So the model's last layer does it only
    for tokens whose logits are asked for, where a step says that no others are.
    """

    is_last = False
    """Whether it is the last of the model, on whatever stage."""

    def forward(self, x_TD: Tensor, angles: Angles, step: Step) -> Tensor:
        """The residual stream after this layer, in place."""
        # No names for heads: these then do not outlive the product that takes them.
        if not (self.is_last and step.only_sampled):
            self.add_attention(x_TD, self.attend(x_TD, angles, step))
            return self.add_feed_forward(x_TD)
        tokens_R = step.sample_tokens_R.long()
        heads_RE = self.attend(x_TD, angles, step).index_select(0, tokens_R)
        if not len(tokens_R):
            return x_TD
        x_RD = x_TD.index_select(0, tokens_R)
        self.add_attention(x_RD, heads_RE)
        return x_TD.index_copy_(0, tokens_R, self.add_feed_forward(x_RD))

    def attend(self, x_TD: Tensor, angles: Angles, step: Step) -> Tensor:
        """What all heads have seen, side by side [T, E]; keys and values are in the cache."""
        raise NotImplementedError

    def add_attention(self, x_TD: Tensor, heads_TE: Tensor) -> None:
        """Add what attention makes of its heads to the residual stream in place."""
        raise NotImplementedError

    def add_feed_forward(self, x_TD: Tensor) -> Tensor:
        """Add the feed-forward layer's result to the residual stream in place, and return it."""
        raise NotImplementedError


class PreNormLayer(SerialLayer):
    """Attention and a feed-forward layer, each behind its norm and added to the residual stream."""

    def __init__(
        self,
        name: str,
        spec: ModelSpec,
        attention: SelfAttention | LatentAttention,
        feed_forward: GatedMLP | MoE,
    ) -> None:
        super().__init__()
        self.input_layernorm = layer_norm(f"{name}.input_layernorm", spec)
        self.self_attn = attention
        self.post_attention_layernorm = layer_norm(f"{name}.post_attention_layernorm", spec)
        self.mlp = feed_forward

    def attend(self, x_TD: Tensor, angles: Angles, step: Step) -> Tensor:
        """See ``SerialLayer``."""
        return self.self_attn.attend(self.input_layernorm(x_TD), angles, step)

    def add_attention(self, x_TD: Tensor, heads_TE: Tensor) -> None:
        """See ``SerialLayer``."""
        self.self_attn.o_proj.add_to(x_TD, heads_TE)

    def add_feed_forward(self, x_TD: Tensor) -> Tensor:
        """See ``SerialLayer``."""
        return self.mlp.add_to(x_TD, self.post_attention_layernorm(x_TD))


def layer_norm(name: str, spec: ModelSpec) -> RMSNorm:
    """An RMS norm of the hidden state, with config.json's epsilon or Transformers' default."""
    eps = float(spec.config.get("rms_norm_eps", 1e-6))
    return RMSNorm(name, spec.config["hidden_size"], eps, spec=spec)


def rounded_to(dtype: torch.dtype, value: float) -> float:
    """The value as a tensor of that dtype would hold it."""
    return float(torch.tensor(value, dtype=dtype, device="cpu"))
