"""Whisper: an encoder of 30 seconds of sound, and a decoder whose layers read what it says.

Axis suffixes: T tokens, M positions of encoders, D hidden, H heads, E head dim, R rows, V
vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from torch import Tensor, nn

from octavo.layers.attention import Attention, MediaAttention
from octavo.layers.embedding import PositionEmbedding, VocabParallelEmbedding
from octavo.layers.language_model import LanguageModel
from octavo.layers.linear import ColumnParallelLinear, RowParallelLinear
from octavo.layers.mel import HOP, LogMel
from octavo.layers.mlp import activation_of
from octavo.layers.norm import LayerNorm
from octavo.layers.speech import EPS, QueryValueBias, SpeechEncoder
from octavo_plugins.models.whisper.hearing import EncoderAttention, RowsAttention, media_attention
from octavo_plugins.models.whisper.rules import TokenRules
from octavo_registry.model import ModelSpec, SequenceTokens
from octavo_registry.step import MediaRows, Step


class Whisper(LanguageModel):
    """WhisperForConditionalGeneration."""

    def __init__(self, spec: ModelSpec) -> None:
        config = spec.config
        super().__init__(
            spec,
            num_layers=config["decoder_layers"],
            tied=config.get("tie_word_embeddings", True),
        )
        hidden: int = config["d_model"]
        self.media_row_size = hidden
        self._num_positions: int = config["max_source_positions"]
        self._mel = LogMel(config["num_mel_bins"], spec.device)
        self.encoder = SpeechEncoder("model.encoder", spec)
        self.decoder = Decoder("model.decoder", spec)
        self.add_head(spec, hidden, "model.decoder.embed_tokens", self.decoder.embed_tokens)
        self._rules = TokenRules(spec)

    def encode(self, items: Sequence[Mapping[str, Tensor]]) -> Sequence[Tensor]:
        """The encoder's output for each sound, behind which there is silence up to its end."""
        num_samples = 2 * self._num_positions * HOP
        rows_MD = self.encoder([self._mel.of(item["samples"], num_samples) for item in items])
        return list(rows_MD.split(self._num_positions))

    def encode_bytes(self, num_rows: int) -> int:
        """Spectra, and what the encoder holds: more than keys and values of a layer."""
        return self._mel.encode_bytes(2 * num_rows) + self.encoder.encode_bytes(num_rows)

    def cross_rows(self, rows_MW: Tensor) -> Iterator[tuple[str, Tensor, Tensor | None]]:
        """Keys and values of each layer of the decoder, or the rows themselves for all of them."""
        if self.decoder.media is not None:
            yield self.decoder.media.name, rows_MW.unsqueeze(1), None
            return
        for layer in self.decoder.layers:
            assert isinstance(layer, DecoderLayer)
            assert isinstance(layer.encoder_attn, EncoderAttention)
            yield layer.encoder_attn.keys_and_values(rows_MW)

    def embed(self, tokens_T: Tensor, media: MediaRows | None) -> Tensor:
        """The input embedding without positions; no token stands for sound."""
        x_TD: Tensor = self.decoder.embed_tokens(tokens_T)
        return x_TD

    def forward(self, x_TD: Tensor, step: Step) -> Tensor:
        """The decoder."""
        out_TD: Tensor = self.decoder(x_TD, step)
        return out_TD

    def rule_out(self, logits_RV: Tensor, slots_R: Tensor, so_far: SequenceTokens) -> Tensor:
        """Leave what generation_config.json and the form of a transcript allow."""
        return self._rules(logits_RV, slots_R, so_far)

    def is_not_needed(self, name: str) -> bool:
        """Some checkpoints have the output embedding twice."""
        return (self._is_tied and name == "proj_out.weight") or super().is_not_needed(name)


class Decoder(nn.Module):
    """What checkpoints call ``model.decoder``."""

    def __init__(self, name: str, spec: ModelSpec) -> None:
        super().__init__()
        config = spec.config
        hidden = config["d_model"]
        self.embed_tokens = VocabParallelEmbedding(
            f"{name}.embed_tokens", config["vocab_size"], hidden, spec=spec
        )
        self.embed_positions = PositionEmbedding(
            f"{name}.embed_positions", config["max_target_positions"], hidden, spec=spec
        )
        self.media = media_attention(f"{name}.media", spec)
        self.layers = nn.ModuleList(
            DecoderLayer(f"{name}.layers.{i}", spec, self.media)
            for i in range(config["decoder_layers"])
        )
        self.layer_norm = LayerNorm(f"{name}.layer_norm", hidden, EPS, spec=spec)

    def forward(self, x_TD: Tensor, step: Step) -> Tensor:
        """What the head takes."""
        x_TD = x_TD + self.embed_positions(step.positions_AT[0])
        for layer in self.layers:
            x_TD = layer(x_TD, step)
        out_TD: Tensor = self.layer_norm(x_TD)
        return out_TD


class DecoderLayer(nn.Module):
    """Attention to the tokens before, to the sound, and an MLP, each behind its norm."""

    def __init__(self, name: str, spec: ModelSpec, media: MediaAttention | None) -> None:
        super().__init__()
        config = spec.config
        hidden, inner = config["d_model"], config["decoder_ffn_dim"]
        self._activation = activation_of(config.get("activation_function", "gelu"), name)
        self.self_attn_layer_norm = LayerNorm(
            f"{name}.self_attn_layer_norm", hidden, EPS, spec=spec
        )
        self.self_attn = SelfAttention(f"{name}.self_attn", spec)
        self.encoder_attn_layer_norm = LayerNorm(
            f"{name}.encoder_attn_layer_norm", hidden, EPS, spec=spec
        )
        self.encoder_attn: EncoderAttention | RowsAttention
        if media is None:
            self.encoder_attn = EncoderAttention(f"{name}.encoder_attn", spec)
        else:
            self.encoder_attn = RowsAttention(f"{name}.encoder_attn", spec, media)
        self.final_layer_norm = LayerNorm(f"{name}.final_layer_norm", hidden, EPS, spec=spec)
        self.fc1 = ColumnParallelLinear(f"{name}.fc1", hidden, {"fc1": inner}, bias=True, spec=spec)
        self.fc2 = RowParallelLinear(f"{name}.fc2", inner, hidden, bias=True, spec=spec)

    def forward(self, x_TD: Tensor, step: Step) -> Tensor:
        """The residual stream after this layer, in place."""
        self.self_attn.add_to(x_TD, self.self_attn_layer_norm(x_TD), step)
        self.encoder_attn.add_to(x_TD, self.encoder_attn_layer_norm(x_TD), step)
        inner = self._activation(self.fc1(self.final_layer_norm(x_TD)))
        return self.fc2.add_to(x_TD, inner)


class SelfAttention(nn.Module):
    """Projections around the attention over the cache of tokens."""

    def __init__(self, name: str, spec: ModelSpec) -> None:
        super().__init__()
        hidden, heads = spec.config["d_model"], spec.config["decoder_attention_heads"]
        self.qkv_proj = QueryValueBias(f"{name}.qkv_proj", hidden, heads, spec=spec)
        self.attention = Attention(
            f"{name}.attention",
            kv_heads=self.qkv_proj.kv_heads,
            head_dim=hidden // heads,
            spec=spec,
        )
        self.out_proj = RowParallelLinear(f"{name}.out_proj", hidden, hidden, bias=True, spec=spec)

    def add_to(self, residual_TD: Tensor, x_TD: Tensor, step: Step) -> Tensor:
        """Add the layer's result for x to the residual stream in place, and return it."""
        out_THE = self.attention(*self.qkv_proj.heads_of(x_TD), step)
        return self.out_proj.add_to(residual_TD, out_THE.flatten(1))
