"""InternViT: layers whose results are scaled entry by entry before they are added.

Axis suffixes: N tiles, C channels, H rows, W columns, P patches and the class token, D hidden.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from octavo.errors import ModelError
from octavo.layers.linear import QKVLinear, ReplicatedLinear
from octavo.layers.norm import LayerNorm, RMSNorm
from octavo.layers.vision import Parameter, activation_of, attend_runs, embed_patches
from octavo_plugins.models.internvl.inputs import patch_of, sides
from octavo_registry.model import ModelSpec

DEFAULTS = {
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
    "hidden_act": "gelu",
    "norm_type": "layer_norm",
    "layer_norm_eps": 1e-6,
    "num_channels": 3,
}
"""What checkpoints may leave out of a vision_config."""


class InternViT(nn.Module):
    """``vision_tower`` of the checkpoint, up to the layer that the language model asks for."""

    def __init__(self, name: str, spec: ModelSpec, layer: int) -> None:
        super().__init__()
        config = spec.config
        hidden, embeddings = config["hidden_size"], f"{name}.embeddings"
        (height, width), patch = sides(config, "image_size"), patch_of(config)
        self.grid = (height // patch[0], width // patch[1])
        projection = f"{embeddings}.patch_embeddings.projection"
        shape = (hidden, config["num_channels"], *patch)
        self.patch_weight = Parameter(f"{projection}.weight", shape, spec)
        self.patch_bias = Parameter(f"{projection}.bias", (hidden,), spec)
        self.class_token = Parameter(f"{embeddings}.cls_token", (1, 1, hidden), spec)
        self.positions = None
        if config.get("use_absolute_position_embeddings", True):
            places = (1, self.grid[0] * self.grid[1] + 1, hidden)
            self.positions = Parameter(f"{embeddings}.position_embeddings", places, spec)
        self.layers = nn.ModuleList(
            InternViTLayer(f"{name}.encoder.layer.{i}", spec) for i in range(layer)
        )
        is_last = layer == config["num_hidden_layers"]
        self.norm = None
        if is_last and not config.get("use_mean_pooling", True):
            eps = config["layer_norm_eps"]
            self.norm = LayerNorm(f"{name}.layernorm", hidden, eps, spec=spec)

    def forward(self, pixels_NCHW: Tensor) -> Tensor:
        """The class token's state, then the patches' row by row [N, P, D]."""
        weight, bias = self.patch_weight.weight, self.patch_bias.weight
        x_NPD = embed_patches(pixels_NCHW, weight, bias)
        first_N1D = self.class_token.weight.expand(len(x_NPD), -1, -1)
        x_NPD = torch.cat([first_N1D, x_NPD], dim=1)
        if self.positions is not None:
            x_NPD = x_NPD + self.positions.weight
        for layer in self.layers:
            x_NPD = layer(x_NPD)
        return x_NPD if self.norm is None else self.norm(x_NPD)


class InternViTLayer(nn.Module):
    """Attention of a tile's patches to each other, and a feed-forward layer."""

    def __init__(self, name: str, spec: ModelSpec) -> None:
        super().__init__()
        config = spec.config
        hidden, heads = config["hidden_size"], config["num_attention_heads"]
        inner = config["intermediate_size"]
        self._activation = activation_of(config, "gelu")
        self.before = _norm(f"{name}.layernorm_before", spec)
        self.qkv_proj = QKVLinear(
            f"{name}.attention.qkv_proj",
            hidden,
            heads=heads,
            kv_heads=heads,
            head_dim=hidden // heads,
            bias=config.get("attention_bias", False),
            spec=spec,
        )
        self.q_norm = self.k_norm = None
        if config.get("use_qk_norm", False):
            self.q_norm = RMSNorm(f"{name}.attention.q_norm", hidden, 1e-6, spec=spec)
            self.k_norm = RMSNorm(f"{name}.attention.k_norm", hidden, 1e-6, spec=spec)
        self.projection = ReplicatedLinear(
            f"{name}.attention.projection_layer", hidden, hidden, bias=True, spec=spec
        )
        self.attention_scale = Parameter(f"{name}.lambda_1", (hidden,), spec)
        self.after = _norm(f"{name}.layernorm_after", spec)
        self.fc1 = ReplicatedLinear(f"{name}.mlp.fc1", hidden, inner, bias=True, spec=spec)
        self.fc2 = ReplicatedLinear(f"{name}.mlp.fc2", inner, hidden, bias=True, spec=spec)
        self.inner_scale = Parameter(f"{name}.lambda_2", (hidden,), spec)

    def forward(self, x_NPD: Tensor) -> Tensor:
        """The hidden state after this layer, in place."""
        shape = x_NPD.shape
        q, k, v = self.qkv_proj.heads_of(self.before(x_NPD).flatten(0, 1))
        if self.q_norm is not None and self.k_norm is not None:
            # Over all heads together.
            q = self.q_norm(q.flatten(1)).view_as(q)
            k = self.k_norm(k.flatten(1)).view_as(k)
        attended_NPD = self.projection(attend_runs(q, k, v, [shape[1]] * shape[0]).view(shape))
        x_NPD.addcmul_(attended_NPD, self.attention_scale.weight)
        inner_NPD = self.fc2(self.fc1.activated(self.after(x_NPD), self._activation))
        return x_NPD.addcmul_(inner_NPD, self.inner_scale.weight)


def _norm(name: str, spec: ModelSpec) -> LayerNorm | RMSNorm:
    kind, eps = spec.config["norm_type"], float(spec.config["layer_norm_eps"])
    if kind == "layer_norm":
        return LayerNorm(name, spec.config["hidden_size"], eps, spec=spec)
    if kind == "rms_norm":
        return RMSNorm(name, spec.config["hidden_size"], eps, spec=spec)
    raise ModelError(f"norm_type={kind!r} is neither 'layer_norm' nor 'rms_norm'")
