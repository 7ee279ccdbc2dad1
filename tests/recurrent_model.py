"""A tiny model with recurrent state, as a plugin, and the same as a plain loop over tokens.

Axis suffixes: T tokens, R rows, D hidden, C entries of a convolution, H heads, K key, V value.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional

from octavo.layers.attention import Attention
from octavo.layers.recurrent import scan
from octavo_registry import LazyRegistry, ModelCapabilities, hookimpl
from octavo_registry.cache import CacheSpec, StateTensor
from octavo_registry.model import ModelSpec
from octavo_registry.step import MediaRows, Step

OCTAVO_API = "1"
ARCHITECTURE = "TinyRecurrent"
HIDDEN, HEADS, KEY, VALUE, CONV = 32, 2, 4, 6, 3
ENTRIES = HEADS * (2 * KEY + VALUE)

Tensors = tuple[Tensor, ...]


@hookimpl
def register_models(models: LazyRegistry) -> None:
    models.add(ARCHITECTURE, "recurrent_model:TinyRecurrent", capabilities=ModelCapabilities())


class DeltaLayer(nn.Module):
    """A short convolution, then the gated delta rule."""

    def __init__(self, name: str, seeded: torch.Generator) -> None:
        super().__init__()
        self.name = name
        self.inputs_DC = _weight(seeded, HIDDEN, ENTRIES)
        self.gates_DH = _weight(seeded, HIDDEN, HEADS)
        self.taps_CK = _weight(seeded, ENTRIES, CONV)
        self.out_ED = _weight(seeded, HEADS * VALUE, HIDDEN)
        self.cache_spec = CacheSpec.state(
            tensors=(
                StateTensor((CONV - 1, ENTRIES), "float32"),
                StateTensor((HEADS, KEY, VALUE), "float32"),
            ),
            log=(StateTensor((ENTRIES,), "float32"), StateTensor((HEADS,), "float32")),
        )

    def advance(self, states: Tensors, added: Tensors) -> tuple[Tensors, Tensor]:
        """Of rows' states and what their next token adds."""
        (tail_RKC, memory_RHKV), (entry_RC, gate_RH) = states, added
        window_RKC = torch.cat([tail_RKC, entry_RC[:, None]], dim=1)
        mixed_RC = functional.silu((window_RKC * self.taps_CK.mT).sum(1))
        q_RH, k_RH, v_RH = mixed_RC.view(-1, HEADS, 2 * KEY + VALUE).split([KEY, KEY, VALUE], 2)
        k_RH = functional.normalize(k_RH, dim=2)
        memory_RHKV = memory_RHKV * torch.sigmoid(2 + gate_RH)[:, :, None, None]
        seen_RHV = (memory_RHKV * k_RH[..., None]).sum(2)
        memory_RHKV = memory_RHKV + k_RH[..., None] * (v_RH - seen_RHV)[:, :, None]
        out_RHV = (memory_RHKV * q_RH[..., None]).sum(2)
        return (window_RKC[:, 1:], memory_RHKV), out_RHV.flatten(1)

    def forward(self, x_TD: Tensor, step: Step) -> Tensor:
        assert step.state is not None
        entries = x_TD @ self.inputs_DC, x_TD @ self.gates_DH
        return scan(step.states[self.name], step.state, entries, self.advance) @ self.out_ED

    def plain(self, x_TD: Tensor) -> Tensor:
        states = tuple(torch.zeros(1, *each.shape) for each in self.cache_spec.tensors)
        given = []
        for x_1D in x_TD.split(1):
            states, out_1E = self.advance(states, (x_1D @ self.inputs_DC, x_1D @ self.gates_DH))
            given.append(out_1E @ self.out_ED)
        return torch.cat(given)


class AttentionLayer(nn.Module):
    def __init__(self, name: str, seeded: torch.Generator, spec: ModelSpec) -> None:
        super().__init__()
        self.qkv_DE = _weight(seeded, HIDDEN, 3 * HIDDEN)
        self.attention = Attention(name, kv_heads=HEADS, head_dim=HIDDEN // HEADS, spec=spec)
        self.cache_spec = self.attention.cache_spec
        self.name = name

    def heads(self, x_TD: Tensor) -> list[Tensor]:
        parts = (x_TD @ self.qkv_DE).chunk(3, dim=1)
        return [part.reshape(-1, HEADS, HIDDEN // HEADS) for part in parts]

    def forward(self, x_TD: Tensor, step: Step) -> Tensor:
        out_TD: Tensor = self.attention(*self.heads(x_TD), step).flatten(1)
        return out_TD

    def plain(self, x_TD: Tensor) -> Tensor:
        q, k, v = (each.transpose(0, 1)[None] for each in self.heads(x_TD))
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return out[0].transpose(0, 1).flatten(1)


class TinyRecurrent(nn.Module):
    """``config["kinds"]`` has a letter a layer: r recurrent, a attention."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        seeded = torch.Generator().manual_seed(5)
        vocab_size = spec.config["vocab_size"]
        self.embed_VD = _weight(seeded, vocab_size, HIDDEN, gain=8.0)
        self.head_DV = _weight(seeded, HIDDEN, vocab_size, gain=4.0)
        self.layers = nn.ModuleList(
            DeltaLayer(f"layers.{i}", seeded)
            if kind == "r"
            else AttentionLayer(f"layers.{i}", seeded, spec)
            for i, kind in enumerate(spec.config.get("kinds", "rar"))
        )

    def cache_specs(self) -> dict[str, CacheSpec]:
        return {layer.name: layer.cache_spec for layer in self.layers}

    def embed(self, tokens_T: Tensor, media: MediaRows | None) -> Tensor:
        return self.embed_VD[tokens_T]

    def forward(self, x_TD: Tensor, step: Step) -> Tensor:
        for layer in self.layers:
            x_TD = x_TD + layer(functional.rms_norm(x_TD, [HIDDEN]), step)
        return functional.rms_norm(x_TD, [HIDDEN])

    def logits(self, hidden_RD: Tensor) -> Tensor:
        return hidden_RD @ self.head_DV

    def load(self, tensors: Iterable[tuple[str, Tensor]]) -> set[str]:
        """All weights are made up; those of the folder are another model's."""
        return {name for name, _ in self.named_parameters()}

    @torch.inference_mode()
    def plain_tokens(self, prompt: list[int], count: int) -> list[int]:
        """The likeliest tokens, each by a loop over all before it."""
        tokens = [*prompt]
        for _ in range(count):
            x_TD = self.embed_VD[torch.tensor(tokens)]
            for layer in self.layers:
                x_TD = x_TD + layer.plain(functional.rms_norm(x_TD, [HIDDEN]))
            logits_V = functional.rms_norm(x_TD[-1:], [HIDDEN]) @ self.head_DV
            tokens.append(int(logits_V.argmax()))
        return tokens[len(prompt) :]


def _weight(seeded: torch.Generator, rows: int, columns: int, gain: float = 1.0) -> nn.Parameter:
    weight = torch.randn(rows, columns, generator=seeded, device="cpu") * gain / rows**0.5
    return nn.Parameter(weight, requires_grad=False)
