"""What an engine takes of a device, by arithmetic: for workers, and for ``octavo plan``."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from octavo.cache.groups import CacheLayout, make_layout
from octavo.config import EngineConfig
from octavo.errors import CacheError, ConfigError, PluginError
from octavo.execution.recordings import SIZES
from octavo.execution.workspace import (
    LIBRARY_BYTES,
    forward_formula,
    hidden_size,
    workspace_bytes,
)
from octavo.layers.adapted import AdapterRows
from octavo.layers.decoder import CausalLM, PreNormLayer
from octavo.layers.mlp import GatedMLP
from octavo.model_folder import ModelFolder
from octavo.sampling.automata import automaton_bytes
from octavo.sampling.held_rows import held_bytes
from octavo.sampling.sampler import LOGIT_ROWS
from octavo.sampling.sparse import table_bytes
from octavo.steps.layout import state_bytes
from octavo_kernels.linear import ALWAYS_FUSED_TOKENS, fuses_gates
from octavo_registry import PluginHost
from octavo_registry.attention import AttentionBackend, ReadsMedia, StoresRows
from octavo_registry.cache import CacheSpec
from octavo_registry.model import AttendsAcross, EncodesMedia, HasWorkspace, Model

DEFAULT_SLOTS = {"cpu": 256, "cuda": 1024}
"""Sequences that run at the same time, where max_num_seqs does not say."""
CPU_STEP_TOKENS = 2048
"""Tokens of whole texts in a step of a CPU: more would only let a query wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """What is cached, by whom it is read, and what a step needs beside it."""

    specs: dict[str, CacheSpec]
    """The cache of each layer, by its name."""
    backends: dict[CacheSpec, AttentionBackend]
    page_bytes: dict[CacheSpec, int]
    """Bytes of one layer's block."""
    block_tokens: int
    num_slots: int
    workspace_bytes: int
    max_step_tokens: int | None = None
    """Tokens that a step of whole texts has at most; None: the model writes."""

    @property
    def layout(self) -> CacheLayout:
        """How pages are cut where all layers of the model are here."""
        return make_layout(self.specs, self.page_bytes.__getitem__, self.block_tokens)


def adapter_rows(config: EngineConfig) -> AdapterRows | None:
    """The pool that the config asks for; each linear of a model that is built with it has rows."""
    lora = config.lora
    if not lora.enable_lora:
        return None
    if lora.lora_experts and config.model.batch_invariant:
        raise ConfigError(
            "lora_experts: products of adapted experts depend on the tokens beside; leave out "
            "batch_invariant, or adapters of experts"
        )
    return AdapterRows(
        lora.num_rank_rows,
        lora.highest_rank,
        batch_invariant=config.model.batch_invariant,
        experts=lora.lora_experts,
    )


def size_engine(
    model: Model,
    config: EngineConfig,
    folder: ModelFolder,
    host: PluginHost,
    *,
    device: torch.device,
    slots_of: str | None = None,
    adapters: AdapterRows | None = None,
) -> Sizing:
    """Choose backends and add up what they need; the model may be on the meta device.

    ``slots_of`` is the kind of device whose default number of rows is meant, if not ``device``'s.
    """
    if folder.pooling is not None:
        _check_reads(config, folder)
    specs = {
        name: _as_run(spec, config.cache.kv_cache_dtype, folder)
        for name, spec in _cache_specs(model, folder, host).items()
    }
    chosen = {
        spec: _choose_backend(spec, device, folder.dtype, config, host)
        for spec in dict.fromkeys(specs.values())
        if spec.kind not in ("none", "state")
    }
    block_tokens = config.cache.block_size
    if folder.pooling is not None:
        return _size_reader(model, config, folder, specs, chosen, device)
    if any(spec.kind == "step" for spec in specs.values()):
        raise CacheError(
            f"{folder.architecture} keeps no keys beyond a step, and so cannot write; its task is "
            f"{folder.task!r}"
        )
    slots_of = slots_of or device.type
    num_slots = config.scheduler.max_num_seqs or DEFAULT_SLOTS[slots_of]
    # A CPU that stands in for a GPU does not tell what will be recorded there: it may all be.
    can_record = all(backend.most_recorded_queries > 0 for backend in chosen.values())
    is_recorded = (
        slots_of == "cuda"
        and not config.model.enforce_eager
        and (device.type != "cuda" or can_record)
    )
    page_bytes = {
        spec: _page_bytes(type(backend).__name__, backend, spec, block_tokens)
        for spec, backend in chosen.items()
    }
    workspace = _workspace(model, config, folder, num_slots, device=device, is_recorded=is_recorded)
    layout = make_layout(specs, page_bytes.__getitem__, block_tokens)
    workspace += state_bytes(
        num_slots=num_slots,
        max_model_len=folder.max_model_len,
        max_blocks=layout.table_blocks(folder.max_model_len),
        num_groups=len(layout.groups),
    )
    if slots_of == "cuda":
        workspace += table_bytes(num_slots, folder.vocab_size)
        if not config.model.skip_tokenizer_init:  # without one, no guides
            workspace += automaton_bytes(num_slots, folder.vocab_size)
    if adapters is not None:
        workspace += adapters.sums_bytes(config.scheduler.max_num_batched_tokens)
    return Sizing(
        specs=specs,
        backends=chosen,
        page_bytes=page_bytes,
        block_tokens=block_tokens,
        num_slots=num_slots,
        workspace_bytes=workspace,
    )


def _check_reads(config: EngineConfig, folder: ModelFolder) -> None:
    """Refuse options that mean nothing to a model of whole texts."""
    cache = config.cache
    unused = {
        "enable_lora": config.lora.enable_lora,
        "logits_processors": config.logits_processors,
        "num_blocks": cache.num_blocks,
        "kv_cache_memory_gib": cache.kv_cache_memory_gib,
        "kv_cache_dtype": None if cache.kv_cache_dtype == "auto" else cache.kv_cache_dtype,
        "num_state_lines": cache.num_state_lines,
    }
    for name, value in unused.items():
        if value:
            raise ConfigError(
                f"{name}: with the task {folder.task!r} {folder.architecture} has no cache, no "
                "adapters and no tokens to sample; leave it out"
            )


def _size_reader(
    model: Model,
    config: EngineConfig,
    folder: ModelFolder,
    specs: dict[str, CacheSpec],
    chosen: dict[CacheSpec, AttentionBackend],
    device: torch.device,
) -> Sizing:
    """A model of whole texts takes what its largest step does, and keeps nothing."""
    for name, spec in specs.items():
        if spec.kind != "step":
            raise CacheError(
                f"{folder.architecture}, layer {name}: with the task {folder.task!r} keys live "
                f"for one step, and it asks for a cache of kind {spec.kind!r}"
            )
    tokens = config.scheduler.max_num_batched_tokens
    if device.type == "cpu":  # more save nothing there
        tokens = min(tokens, CPU_STEP_TOKENS)
    dtype: torch.dtype = getattr(torch, folder.dtype)
    forward = (
        model.workspace_bytes
        if isinstance(model, HasWorkspace)
        else forward_formula(folder.config, item_bytes=dtype.itemsize)
    )
    return Sizing(
        specs=specs,
        backends=chosen,
        page_bytes={},
        block_tokens=0,
        num_slots=0,
        workspace_bytes=forward(max(tokens, folder.max_model_len)) + LIBRARY_BYTES,
        max_step_tokens=tokens,
    )


def _cache_specs(model: Model, folder: ModelFolder, host: PluginHost) -> dict[str, CacheSpec]:
    name = folder.implementation
    with host.models.guard(name, f"cache_specs of {folder.architecture}"):
        specs: Any = model.cache_specs()
        if not isinstance(specs, dict) or not all(
            isinstance(layer, str) and isinstance(spec, CacheSpec) for layer, spec in specs.items()
        ):
            raise TypeError(f"it returned {specs!r:.200}, not a dict of CacheSpec by layer")
        return specs


def _page_bytes(name: str, backend: AttentionBackend, spec: CacheSpec, block_tokens: int) -> int:
    num_bytes: Any = backend.page_bytes(spec, block_tokens)
    if type(num_bytes) is not int or num_bytes < 1:
        raise PluginError(
            f"attention backend {name} returned page_bytes={num_bytes!r}, not a number of bytes"
        )
    return num_bytes


def _as_run(spec: CacheSpec, dtype: str, folder: ModelFolder) -> CacheSpec:
    """A layer's, as its backend must know it; encoded media are no keys and values."""
    if spec.kind == "state":
        return spec
    return dataclasses.replace(
        spec,
        dtype=spec.dtype if dtype == "auto" or spec.kind == "media" else dtype,
        whole_rows=folder.capabilities.media_attention == "bidirectional",
    )


def cache_choice(
    config: EngineConfig, folder: ModelFolder, host: PluginHost, device: torch.device
) -> Callable[[CacheSpec], bool]:
    """Whether a backend takes a layer's cache, for models that can do with one of several.

    Encoded media as they are pay only with a kernel for them, and in steps of many sequences.
    """
    num_slots = config.scheduler.max_num_seqs or DEFAULT_SLOTS[device.type]

    def takes(spec: CacheSpec) -> bool:
        name = _backend_name(spec, device, folder.dtype, config, host)
        if name is None:
            return False
        backend, reason = _asked_backend(name, spec, device, host)
        if spec.kind == "media" and not (
            isinstance(backend, ReadsMedia) and num_slots >= backend.fewest_media_rows
        ):
            return False
        return reason is None

    return takes


def _backend_name(
    spec: CacheSpec, device: torch.device, query_dtype: str, config: EngineConfig, host: PluginHost
) -> str | None:
    """The one that the config names, or that a plugin chooses."""
    named = config.model.attention_backend
    if named is not None:
        return named
    chosen: str | None = host.hook.select_attention_backend(
        spec=spec, device=device, query_dtype=query_dtype
    )
    return chosen


def _asked_backend(
    name: str, spec: CacheSpec, device: torch.device, host: PluginHost
) -> tuple[AttentionBackend, str | None]:
    """The backend of that name, and why it does not take the cache; None: it does."""
    backend: AttentionBackend = host.attention_backends.make(name)
    with host.attention_backends.guard(name, f"attention backend {name!r}, supports"):
        reason = backend.supports(spec, device)
        if not isinstance(reason, str | None):
            raise TypeError(f"it returned {type(reason).__name__}, not a reason or None")
    return backend, reason


def _choose_backend(
    spec: CacheSpec,
    device: torch.device,
    query_dtype: str,
    config: EngineConfig,
    host: PluginHost,
) -> AttentionBackend:
    name = _backend_name(spec, device, query_dtype, config, host)
    if name is None:
        raise ConfigError(f"no plugin has an attention backend for {spec} on {device}; name one")
    backend, reason = _asked_backend(name, spec, device, host)
    if reason is not None:
        raise ConfigError(f"attention backend {name!r} cannot run {spec} on {device}: {reason}")
    if spec.rows is not None and not isinstance(backend, StoresRows):
        raise ConfigError(f"attention backend {name!r} has no ``store``, which {spec} needs")
    if config.model.batch_invariant and not backend.batch_invariant:
        raise ConfigError(
            f"attention backend {name!r} cannot give batch_invariant results; name another, or use "
            "float32, where tokens depend on nothing else in any case"
        )
    return backend


def _adds_in_place(
    model: object, config: EngineConfig, folder: ModelFolder, device: torch.device
) -> bool:
    """Whether the products of each layer add to the residual stream in place."""
    return (
        device.type == "cuda"
        and config.parallel.tensor_parallel_size == 1
        and folder.quantization is None
        and isinstance(model, CausalLM)
        and all(
            isinstance(layer, PreNormLayer) and isinstance(layer.mlp, GatedMLP)
            for layer in model.model.layers.values()
        )
    )


def _workspace(
    model: object,
    config: EngineConfig,
    folder: ModelFolder,
    num_slots: int,
    *,
    device: torch.device,
    is_recorded: bool,
) -> int:
    """Scratch of the largest step and of the recorded ones, which keep theirs; held rows, media."""
    text_config = {**folder.config, **(folder.config.get("text_config") or {})}
    dtype: torch.dtype = getattr(torch, folder.dtype)
    item_bytes = dtype.itemsize
    # A quantization of its own may make gates and ups apart; a plan without a GPU takes them so.
    # Adapters' parts come between the product and the activation.
    has_adapters = config.lora.enable_lora
    is_fused = folder.quantization is None and not has_adapters and fuses_gates(dtype, device)
    forward = (
        model.workspace_bytes
        if isinstance(model, HasWorkspace)
        else forward_formula(
            text_config,
            item_bytes=item_bytes,
            tp_size=config.parallel.tensor_parallel_size,
            fused_from=ALWAYS_FUSED_TOKENS if is_fused else None,
            adds_in_place=_adds_in_place(model, config, folder, device),
        )
    )
    media = 0
    if isinstance(model, EncodesMedia):
        num_rows = config.media.cached_rows(across=isinstance(model, AttendsAcross))
        media = item_bytes * num_rows * model.media_row_size + model.encode_bytes(num_rows)
    hidden_bytes = item_bytes * hidden_size(text_config)
    return (
        held_bytes(num_slots, hidden_bytes)
        + media
        + workspace_bytes(
            forward,
            num_tokens=config.scheduler.max_num_batched_tokens,
            # A step may sample for all rows and compute prompt logprobs, these some rows at a time.
            num_logit_rows=num_slots + LOGIT_ROWS,
            num_recorded_rows=min(num_slots, SIZES[-1]) if is_recorded else 0,
            hidden_bytes=hidden_bytes,
            row_bytes=item_bytes * folder.vocab_size,
        )
    )
