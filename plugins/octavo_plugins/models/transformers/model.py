"""A causal language model run by Transformers' modelling code, with attention and cache of ours.

A step's tokens go through it as one batch entry, with the position of each and neither mask nor
cache. Axis suffixes: T tokens, D hidden, R rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.core_model_loading import build_glob_alternation
from transformers.initialization import no_init_weights

from octavo.errors import ModelError
from octavo.execution.workspace import forward_formula
from octavo_plugins.models.transformers.architectures import find_architecture
from octavo_plugins.models.transformers.attention import (
    NAME,
    PROBED_NAME,
    Handler,
    PagedAttention,
    PagedLayer,
    handled_by,
)
from octavo_plugins.models.transformers.checkpoint import fill
from octavo_plugins.models.transformers.probe import (
    Alone,
    check_calls,
    check_tokens_are_apart,
    window_of,
)
from octavo_registry.cache import CacheSpec
from octavo_registry.faults import one_line
from octavo_registry.model import ModelSpec
from octavo_registry.step import MediaRows, Step

NUM_PROBED: Final = 4
"""Tokens of a trial run."""


class TransformersModel(nn.Module):
    """Whatever causal language model ``spec.architecture`` names; refused unless it can be run."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self._spec = spec
        if spec.batch_invariant:
            raise _refusal(spec, "its products cannot be batch_invariant")
        model_class, config = find_architecture(spec)
        if not model_class.is_backend_compatible():
            raise _refusal(spec, "its layers do not call attention through AttentionInterface")
        # Not on the meta device: what buffers hold is computed here, and stands in no checkpoint.
        with no_init_weights():
            self.causal_lm = model_class._from_config(
                config, dtype=spec.dtype, attn_implementation=NAME
            )
        if spec.device.type == "meta":  # the default has no float32 there
            self.causal_lm.set_experts_implementation("batched_mm")
        self.causal_lm.tie_weights()
        _keep_in_float32(self.causal_lm, spec.dtype)
        self._base = _layers_of(self.causal_lm)
        if self._base is self.causal_lm:
            raise _refusal(spec, "its layers cannot be told from its head")
        self._embedding: nn.Module = self.causal_lm.get_input_embeddings()
        self._layers: Mapping[nn.Module, PagedLayer] = {}

    @torch.inference_mode()
    def cache_specs(self) -> dict[str, CacheSpec]:
        """What each attention layer caches, as a few forwards over few tokens show, or refuse.

        On the meta device only sizes can be asked for: masks and results are not looked at.
        """
        tokens_T = torch.arange(NUM_PROBED, device=self._spec.device)
        try:
            x_TD = self._embedding(tokens_T)
            self._layers = self._find_layers(x_TD)
            if not x_TD.is_meta:
                check_tokens_are_apart(self, tokens_T, x_TD, last=self._spec.max_model_len - 1)
        except ModelError as error:
            raise _refusal(self._spec, str(error)) from error
        except Exception as error:
            raise _refusal(self._spec, f"a trial run fails: {one_line(error)}") from error
        return {layer.name: layer.cache_spec for layer in self._layers.values()}

    def embed(self, tokens_T: Tensor, media: MediaRows | None) -> Tensor:
        """The input embedding."""
        x_TD: Tensor = self._embedding(tokens_T)
        return x_TD

    def forward(self, x_TD: Tensor, step: Step) -> Tensor:
        """All layers and the last norm."""
        return self.hidden(x_TD, step.positions_AT[0], PagedAttention(self._layers, step))

    def logits(self, hidden_RD: Tensor) -> Tensor:
        """The head, with whatever the architecture does to logits."""
        logits_RV: Tensor = self.causal_lm(inputs_embeds=hidden_RD.unsqueeze(0)).logits[0]
        return logits_RV

    def load(self, tensors: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Fill parameters and buffers from a checkpoint as Transformers would."""
        return {f"causal_lm.{name}" for name in fill(self.causal_lm, tensors)}

    def workspace_bytes(self, num_tokens: int) -> int:
        """See ``HasWorkspace``; experts are kept four hidden states for each token (measured)."""
        config = {**self._spec.config, **(self._spec.config.get("text_config") or {})}
        item_bytes = self._spec.dtype.itemsize
        return forward_formula(config, item_bytes=item_bytes, expert_copies=4)(num_tokens)

    def hidden(self, x_TD: Tensor, positions_T: Tensor, handler: Handler) -> Tensor:
        """The model without its head; its attention is the handler's."""
        hidden_TD: Tensor = self._run(x_TD, positions_T, handler).last_hidden_state[0]
        return hidden_TD

    def whole(self, tokens_T: Tensor, positions_T: Tensor, handler: Handler) -> Tensor:
        """The whole model as Transformers runs it, from ids to logits."""
        stand_in = self._base.__dict__.pop("forward")
        try:
            with handled_by(handler):
                outputs = self.causal_lm(
                    tokens_T.unsqueeze(0), position_ids=positions_T.unsqueeze(0), use_cache=False
                )
        finally:
            self._base.forward = stand_in
        logits_TV: Tensor = outputs.logits[0]
        return logits_TV

    def _find_layers(self, x_TD: Tensor) -> dict[nn.Module, PagedLayer]:
        """Run a few tokens, with masks as the model asks for them, and note who calls attention."""
        alone = Alone()
        with nullcontext() if x_TD.is_meta else self._masks_asked_for():
            outputs = self._run(x_TD, torch.arange(len(x_TD), device=x_TD.device), alone)
        # From here on the class's own forward, which calls its layers, is the head alone.
        self._base.forward = partial(_pass_on, type(outputs))
        config = self.causal_lm.config.get_text_config(decoder=True)
        check_calls(alone.calls, config.num_hidden_layers)
        names = {module: name for name, module in self.causal_lm.named_modules()}
        layers = {}
        for seen in alone.calls:
            window = window_of(seen.call, self._spec.max_model_len)
            dtype = str(seen.dtype).removeprefix("torch.")
            shape: Any = {"kv_heads": seen.kv_heads, "head_dim": seen.head_dim, "dtype": dtype}
            layers[seen.layer] = PagedLayer(
                name=names[seen.layer],
                cache_spec=CacheSpec.full(**shape)
                if window is None
                else CacheSpec.sliding(**shape, window=window),
            )
        return layers

    def _run(self, x_TD: Tensor, positions_T: Tensor, handler: Handler) -> Any:
        """The layers' outputs; the class's forward, since the instance's is the stand-in."""
        with handled_by(handler):
            return type(self._base).forward(
                self._base,
                inputs_embeds=x_TD.unsqueeze(0),
                position_ids=positions_T.unsqueeze(0),
                use_cache=False,
            )

    @contextmanager
    def _masks_asked_for(self) -> Iterator[None]:
        """Within, layers are given the masks that the model would have made."""
        configs = [m.config for m in self.causal_lm.modules() if isinstance(m, PreTrainedModel)]
        for config in configs:
            config._attn_implementation = PROBED_NAME
        try:
            yield
        finally:
            for config in configs:
                config._attn_implementation = NAME


def _layers_of(causal_lm: Any) -> nn.Module:
    """What the head calls; some classes give it another name than their prefix says."""
    base: nn.Module = causal_lm.base_model
    return getattr(causal_lm, "model", base) if base is causal_lm else base


def _keep_in_float32(causal_lm: Any, dtype: torch.dtype) -> None:
    """What the class never computes in 16 bits, such as the bias that chooses experts."""
    patterns = list(causal_lm._get_dtype_plan(dtype))
    if patterns:
        wanted, _, _ = build_glob_alternation(patterns)
        for name, tensor in causal_lm.state_dict(keep_vars=True).items():
            if wanted.search(name):
                tensor.data = tensor.data.float()


def _pass_on(output_class: Any, *args: Any, inputs_embeds: Tensor, **options: Any) -> Any:
    """Stand in for the layers where hidden states go to the head."""
    return output_class(last_hidden_state=inputs_embeds)


def _refusal(spec: ModelSpec, reason: str) -> ModelError:
    return ModelError(
        f"{spec.architecture} cannot be run by Transformers' own code on our cache: {reason}; "
        "use a plugin that has the architecture"
    )
