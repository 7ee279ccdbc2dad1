"""Vision transformers over patches of equal images, as CLIP and SigLIP have them.

They run whole on every rank. Axis suffixes: N images, P patches and leading tokens, D hidden, H
heads, E entries of a head, C channels times patch pixels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from octavo.errors import ModelError
from octavo.layers.linear import QKVLinear, ReplicatedLinear
from octavo.layers.loading import Source
from octavo.layers.norm import LayerNorm
from octavo_kernels.dense_attention import dense_attention
from octavo_registry.linear import PlainActivation
from octavo_registry.model import ModelSpec

ACTIVATIONS: Mapping[str, PlainActivation] = {
    "quick_gelu": "quick_gelu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
}
"""Activations of vision towers by their names in config.json's ``hidden_act``."""


def activation_of(config: Mapping[str, Any], default: str) -> PlainActivation:
    """The one that a vision config names."""
    name = config.get("hidden_act", default)
    if name not in ACTIVATIONS:
        raise ModelError(f"hidden_act={name!r} is none of {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


def text_spec(spec: ModelSpec, config: Mapping[str, Any]) -> ModelSpec:
    """For a part of the model with settings of its own, which no rank shares and none quantizes."""
    return replace(spec, config=config, tp_rank=0, tp_size=1, collectives=None, quantization=None)


def tower_spec(spec: ModelSpec, config: Mapping[str, Any]) -> ModelSpec:
    """The spec of a model's part that sees media, and takes no adapters."""
    return replace(text_spec(spec, config), adapters=None)


class Parameter(nn.Module):
    """A tensor of the checkpoint as it is."""

    def __init__(self, name: str, shape: tuple[int, ...], spec: ModelSpec) -> None:
        super().__init__()
        self.name = name
        empty = torch.empty(shape, dtype=spec.dtype, device=spec.device)
        self.weight = nn.Parameter(empty, requires_grad=False)

    def sources(self) -> Iterator[Source]:
        """See ``LoadsWeights``."""
        weight = self.weight
        yield Source(
            name=self.name,
            shape=tuple(weight.shape),
            part=(),
            target=weight.data,
            parameter=weight,
        )


def embed_patches(pixels_NCHW: Tensor, weight_DCPP: Tensor, bias_D: Tensor | None) -> Tensor:
    """Patches [N, P, D], row by row: a convolution whose stride is its size, as one product.

    A convolution of cuDNN would be in TF32 where all else is in float32.
    """
    high, wide = weight_DCPP.shape[2:]
    images, channels, height, width = pixels_NCHW.shape
    rows, columns = height // high, width // wide
    pixels_NCHW = pixels_NCHW[:, :, : rows * high, : columns * wide]
    split = pixels_NCHW.reshape(images, channels, rows, high, columns, wide)
    patches_NPE = split.permute(0, 2, 4, 1, 3, 5).reshape(images, rows * columns, -1)
    return F.linear(patches_NPE, weight_DCPP.flatten(1), bias_D)


class PatchEmbedding(nn.Module):
    """One product for each patch, see ``embed_patches``."""

    def __init__(self, name: str, *, channels: int, bias: bool, spec: ModelSpec) -> None:
        super().__init__()
        size, hidden = spec.config["patch_size"], spec.config["hidden_size"]
        self.weight = Parameter(f"{name}.weight", (hidden, channels, size, size), spec)
        self.bias = Parameter(f"{name}.bias", (hidden,), spec) if bias else None

    def forward(self, pixels_NCHW: Tensor) -> Tensor:
        """Patches [N, P, D], row by row."""
        bias_D = None if self.bias is None else self.bias.weight
        return embed_patches(pixels_NCHW, self.weight.weight, bias_D)


class VisionLayer(nn.Module):
    """Attention of all patches of an image to each other, and a feed-forward layer.

    It adds to the hidden state, which is contiguous, in place.
    """

    def __init__(self, name: str, spec: ModelSpec, activation: PlainActivation, eps: float) -> None:
        super().__init__()
        config = spec.config
        hidden, heads = config["hidden_size"], config["num_attention_heads"]
        self._activation = activation
        self.layer_norm1 = LayerNorm(f"{name}.layer_norm1", hidden, eps, spec=spec)
        self.qkv_proj = QKVLinear(
            f"{name}.self_attn.qkv_proj",
            hidden,
            heads=heads,
            kv_heads=heads,
            head_dim=hidden // heads,
            bias=True,
            spec=spec,
        )
        self.out_proj = ReplicatedLinear(
            f"{name}.self_attn.out_proj", hidden, hidden, bias=True, spec=spec
        )
        self.layer_norm2 = LayerNorm(f"{name}.layer_norm2", hidden, eps, spec=spec)
        inner = config["intermediate_size"]
        self.fc1 = ReplicatedLinear(f"{name}.mlp.fc1", hidden, inner, bias=True, spec=spec)
        self.fc2 = ReplicatedLinear(f"{name}.mlp.fc2", inner, hidden, bias=True, spec=spec)

    def forward(self, x_NPD: Tensor) -> Tensor:
        """The hidden state after this layer."""
        shape = x_NPD.shape
        q, k, v = self.qkv_proj.heads_of(self.layer_norm1(x_NPD).flatten(0, 1))
        attended = attend_runs(q, k, v, [shape[1]] * shape[0])
        self.out_proj.add_to(x_NPD, attended.view(shape))
        inner = self.fc1.activated(self.layer_norm2(x_NPD), self._activation)
        return self.fc2.add_to(x_NPD, inner)


class VisionTransformer(nn.Module):
    """CLIP's tower, or SigLIP's, which has no class token and no norm before the layers.

    Only the layers up to ``num_layers`` are built; a checkpoint may have more.
    """

    def __init__(
        self,
        name: str,
        spec: ModelSpec,
        *,
        class_token: bool,
        num_layers: int,
        final_norm: bool,
    ) -> None:
        super().__init__()
        config = spec.config
        hidden = config["hidden_size"]
        eps = float(config.get("layer_norm_eps", 1e-5 if class_token else 1e-6))
        activation = activation_of(config, "quick_gelu" if class_token else "gelu_pytorch_tanh")
        num_patches = (config["image_size"] // config["patch_size"]) ** 2
        embeddings = f"{name}.embeddings"
        self.patches = PatchEmbedding(
            f"{embeddings}.patch_embedding",
            channels=config.get("num_channels", 3),
            bias=not class_token,
            spec=spec,
        )
        self.class_token = (
            Parameter(f"{embeddings}.class_embedding", (hidden,), spec) if class_token else None
        )
        positions = (num_patches + class_token, hidden)
        self.positions = Parameter(f"{embeddings}.position_embedding.weight", positions, spec)
        self.pre_norm = (
            LayerNorm(f"{name}.pre_layrnorm", hidden, eps, spec=spec) if class_token else None
        )
        self.layers = nn.ModuleList(
            VisionLayer(f"{name}.encoder.layers.{i}", spec, activation, eps)
            for i in range(num_layers)
        )
        self.post_norm = (
            LayerNorm(f"{name}.post_layernorm", hidden, eps, spec=spec) if final_norm else None
        )

    def forward(self, pixels_NCHW: Tensor, layers: Sequence[int] = ()) -> list[Tensor]:
        """Hidden states [N, P, D] after so many layers each; without numbers, the last alone."""
        x_NPD = self.patches(pixels_NCHW)
        if self.class_token is not None:
            first_N1D = self.class_token.weight.expand(len(x_NPD), 1, -1)
            x_NPD = torch.cat([first_N1D, x_NPD], dim=1)
        x_NPD = x_NPD + self.positions.weight
        if self.pre_norm is not None:
            x_NPD = self.pre_norm(x_NPD)
        states = {}
        for number, layer in enumerate(self.layers):
            if number in layers:
                states[number] = x_NPD.clone()  # which the layer adds to
            x_NPD = layer(x_NPD)
        if self.post_norm is not None:
            x_NPD = self.post_norm(x_NPD)
        states[len(self.layers)] = x_NPD
        return [states[layer] for layer in layers or [len(self.layers)]]


def normalised(pixels: Tensor, mean: Tensor, std: Tensor, dtype: torch.dtype) -> Tensor:
    """Bytes [N, C, H, W] as a model's processor scales them."""
    return ((pixels.float() / 255 - mean) / std).to(dtype)


def pixels_of(item: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
    """An item's ``pixels``, normalised by the ``scale`` that came with them."""
    mean_C11, std_C11 = item["scale"]
    return normalised(item["pixels"], mean_C11, std_C11, dtype)


def attend_runs(
    q_PHE: Tensor,
    k_PHE: Tensor,
    v_PHE: Tensor,
    runs: Sequence[int],
    seen: Sequence[int] | None = None,
) -> Tensor:
    """Attention [P, H * E] of patches to those of their own run; ``runs`` are lengths.

    Of a run only the first ``seen`` are attended to, None: all.
    """
    return dense_attention(q_PHE, k_PHE, v_PHE, runs, seen).flatten(1)
