"""What an engine takes of a device, by arithmetic: for workers, and for ``octavo plan``."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch

from octavo.cache.budget import workspace_bytes
from octavo.cache.groups import CacheLayout, make_layout
from octavo.config import EngineConfig
from octavo.config.model_folder import ModelFolder
from octavo.errors import ConfigError
from octavo.execution.runner import LOGIT_ROWS
from octavo_registry import PluginHost
from octavo_registry.attention import AttentionBackend
from octavo_registry.cache import CacheSpec
from octavo_registry.model import HasWorkspace, Model

DEFAULT_SLOTS = {"cpu": 256, "cuda": 1024}
"""Sequences that run at the same time, where max_num_seqs does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """How the cache is cut, by whom it is read, and what a step needs beside it."""

    layout: CacheLayout
    backends: dict[CacheSpec, AttentionBackend]
    num_slots: int
    workspace_bytes: int


def size_engine(
    model: Model,
    config: EngineConfig,
    folder: ModelFolder,
    host: PluginHost,
    *,
    device: torch.device,
    slots_of: str | None = None,
) -> Sizing:
    """Choose backends and cut the cache; the model may be on the meta device.

    ``slots_of`` is the kind of device whose default number of rows is meant, if not ``device``'s.
    """
    specs = {
        name: _with_cache_dtype(spec, config.cache.kv_cache_dtype)
        for name, spec in model.cache_specs().items()
    }
    chosen = {
        spec: _choose_backend(spec, device, config, host)
        for spec in dict.fromkeys(specs.values())
        if spec.kind != "none"
    }
    block_tokens = config.cache.block_size
    num_slots = config.scheduler.max_num_seqs or DEFAULT_SLOTS[slots_of or device.type]
    return Sizing(
        layout=make_layout(
            specs, lambda spec: chosen[spec].page_bytes(spec, block_tokens), block_tokens
        ),
        backends=chosen,
        num_slots=num_slots,
        workspace_bytes=_workspace(model, config, folder, num_slots),
    )


def _with_cache_dtype(spec: CacheSpec, dtype: str) -> CacheSpec:
    return spec if dtype == "auto" else dataclasses.replace(spec, dtype=dtype)


def _choose_backend(
    spec: CacheSpec, device: torch.device, config: EngineConfig, host: PluginHost
) -> AttentionBackend:
    name = config.model.attention_backend
    if name is None:
        name = host.hook.select_attention_backend(spec=spec, device=device)
    if name is None:
        raise ConfigError(f"no plugin has an attention backend for {spec} on {device}; name one")
    backend: AttentionBackend = host.attention_backends.load(name)()
    reason = backend.supports(spec, device)
    if reason is not None:
        raise ConfigError(f"attention backend {name!r} cannot run {spec} on {device}: {reason}")
    if config.model.batch_invariant and not backend.batch_invariant:
        raise ConfigError(
            f"attention backend {name!r} cannot give batch_invariant results; name another, or use "
            "float32, where tokens depend on nothing else in any case"
        )
    return backend


def _workspace(model: object, config: EngineConfig, folder: ModelFolder, num_slots: int) -> int:
    """Scratch of the largest step, and of the recorded ones, which keep theirs; device state."""
    num_tokens = config.scheduler.max_num_batched_tokens + num_slots
    state_bytes = 4 * num_slots * folder.max_model_len
    if isinstance(model, HasWorkspace):
        return model.workspace_bytes(num_tokens) + state_bytes
    # A step may draw for all its rows and compute prompt logprobs, these some rows at a time.
    num_logit_rows = num_slots + LOGIT_ROWS
    return workspace_bytes(dict(folder.config), num_tokens, num_logit_rows) + state_bytes
