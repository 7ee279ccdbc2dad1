"""Mamba 2: layers with a recurrent state and nothing else, and no positions.

Axis suffixes: T tokens, D hidden.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from octavo.errors import ModelError
from octavo.layers.embedding import VocabParallelEmbedding
from octavo.layers.language_model import LanguageModel, with_defaults
from octavo.layers.norm import RMSNorm
from octavo_plugins.models.mamba2.mixer import Mixer
from octavo_registry.cache import CacheSpec
from octavo_registry.model import ModelSpec
from octavo_registry.step import MediaRows, Step


class Mamba2(LanguageModel):
    """Mamba2ForCausalLM."""

    def __init__(self, spec: ModelSpec) -> None:
        spec = with_defaults(spec, expand=2, n_groups=8, state_size=128, head_dim=64, num_heads=128)
        config = spec.config
        if config.get("hidden_act", "silu") not in ("silu", "swish"):
            raise ModelError(
                f"{spec.architecture}: hidden_act={config['hidden_act']!r}; there is only silu"
            )
        super().__init__(
            spec,
            num_layers=config["num_hidden_layers"],
            tied=bool(config.get("tie_word_embeddings", False)),
        )
        self.backbone = Backbone(spec, config["num_hidden_layers"])
        self.add_head(spec, config["hidden_size"], "backbone.embeddings", self.backbone.embeddings)

    def cache_specs(self) -> dict[str, CacheSpec]:
        """The state of each layer."""
        mixers = (module for module in self.modules() if isinstance(module, Mixer))
        return {mixer.name: mixer.cache_spec for mixer in mixers}

    def embed(self, tokens_T: Tensor, media: MediaRows | None) -> Tensor:
        """The input embedding."""
        x_TD: Tensor = self.backbone.embeddings(tokens_T)
        return x_TD

    def forward(self, x_TD: Tensor, step: Step) -> Tensor:
        """All layers and the last norm."""
        dtype = x_TD.dtype
        for layer in self.backbone.layers.values():
            x_TD = layer(x_TD, step)
        normed_TD: Tensor = self.backbone.norm_f(x_TD.to(dtype))
        return normed_TD

    def load(self, tensors: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Fill the parameters; old checkpoints call the embeddings by another name."""
        old, new = "backbone.embedding.", "backbone.embeddings."
        return super().load((name.replace(old, new), tensor) for name, tensor in tensors)


class Backbone(nn.Module):
    """What checkpoints call so."""

    def __init__(self, spec: ModelSpec, num_layers: int) -> None:
        super().__init__()
        config, name = spec.config, "backbone"
        self.embeddings = VocabParallelEmbedding(
            f"{name}.embeddings", config["vocab_size"], config["hidden_size"], spec=spec
        )
        self.layers = nn.ModuleDict({str(i): Layer(spec, i) for i in range(num_layers)})
        self.norm_f = layer_norm(f"{name}.norm_f", spec)


class Layer(nn.Module):
    """A mixer behind its norm, added to the residual stream."""

    def __init__(self, spec: ModelSpec, index: int) -> None:
        super().__init__()
        name = f"backbone.layers.{index}"
        self.norm = layer_norm(f"{name}.norm", spec)
        self.mixer = Mixer(f"{name}.mixer", spec)
        self._dtype = spec.dtype
        self._stream = torch.float32 if spec.config.get("residual_in_fp32", True) else spec.dtype

    def forward(self, x_TD: Tensor, step: Step) -> Tensor:
        """The residual stream after this layer."""
        out_TD: Tensor = self.mixer(self.norm(x_TD.to(self._dtype)), step)
        return x_TD.to(self._stream) + out_TD


def layer_norm(name: str, spec: ModelSpec) -> RMSNorm:
    """An RMS norm of the hidden state."""
    config = spec.config
    eps = float(config.get("layer_norm_epsilon", 1e-5))
    return RMSNorm(name, config["hidden_size"], eps, spec=spec)
