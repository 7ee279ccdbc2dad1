"""One device's part of an engine: model, cache and runner."""

from __future__ import annotations

import dataclasses
import logging
import time

import torch

from octavo.cache.budget import GIB, DeviceMemory, size_pool, workspace_bytes
from octavo.cache.groups import make_layout
from octavo.config import EngineConfig
from octavo.config.model_folder import ModelFolder
from octavo.errors import ConfigError
from octavo.execution.cache_memory import CacheMemory
from octavo.execution.processors import GuardedProcessor
from octavo.execution.runner import LOGIT_ROWS, ModelRunner
from octavo.execution.state_layout import StateLayout
from octavo.weights.load import load_model
from octavo_registry import PluginHost
from octavo_registry.attention import AttentionBackend
from octavo_registry.cache import CacheSpec
from octavo_registry.executor import ExecutorFacts
from octavo_registry.model import HasWorkspace

log = logging.getLogger(__name__)

DEFAULT_SLOTS = {"cpu": 256, "cuda": 1024}
"""Sequences that run at the same time, where max_num_seqs does not say."""


def choose_device(name: str) -> torch.device:
    """The device of that name; "auto" is the first CUDA device where there is one."""
    if name == "auto":
        return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"device={name!r} is not a torch device; try 'cpu' or 'cuda'") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device={name!r}: torch {torch.__version__} finds no CUDA device")
    return torch.device("cuda", device.index or 0) if device.type == "cuda" else device


class Worker:
    """Loads at construction, on the calling thread; its ``runner`` then takes plans in order."""

    def __init__(self, config: EngineConfig, folder: ModelFolder, host: PluginHost) -> None:
        start = time.monotonic()
        self.device = choose_device(config.model.device)
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        model = load_model(folder, host, config=config.model, device=self.device)
        specs = {
            name: _with_cache_dtype(spec, config.cache.kv_cache_dtype)
            for name, spec in model.cache_specs().items()
        }
        chosen = {
            spec: _choose_backend(spec, self.device, config, host)
            for spec in dict.fromkeys(specs.values())
            if spec.kind != "none"
        }
        block_tokens = config.cache.block_size
        layout = make_layout(
            specs, lambda spec: chosen[spec].page_bytes(spec, block_tokens), block_tokens
        )
        num_slots = config.scheduler.max_num_seqs or DEFAULT_SLOTS[self.device.type]
        size = size_pool(
            config,
            layout,
            memory=_device_memory(self.device),
            workspace=_workspace(model, config, folder, num_slots),
            num_slots=num_slots,
            max_model_len=folder.max_model_len,
            shrink_context=config.model.max_model_len == "auto",
        )
        state = StateLayout(
            num_slots=num_slots,
            max_model_len=size.max_model_len,
            max_blocks=-(-size.max_model_len // block_tokens),
            num_groups=len(layout.groups),
        )
        memory = CacheMemory(layout, size.num_blocks, size.num_swap_blocks, self.device)
        self.runner = ModelRunner(
            model=model,
            layout=layout,
            state_layout=state,
            memory=memory,
            backends=[chosen[group.spec] for group in layout.groups],
            vocab_size=folder.vocab_size,
            processors=[
                GuardedProcessor(name, host, vocab_size=folder.vocab_size, device=self.device)
                for name in config.logits_processors
            ],
            device=self.device,
            async_depth=config.scheduler.async_depth,
            use_graphs=self.device.type == "cuda" and not config.model.enforce_eager,
            batch_invariant=config.model.batch_invariant,
        )
        self.facts = ExecutorFacts(
            layout=layout,
            state=state,
            num_blocks=size.num_blocks,
            num_swap_blocks=size.num_swap_blocks,
            max_model_len=size.max_model_len,
        )
        log.info(
            "%s on %s in %s, %.1f s; kv cache: %d blocks of %d tokens, %.2f GiB, %d groups",
            folder.architecture,
            self.device,
            folder.dtype,
            time.monotonic() - start,
            size.num_blocks,
            block_tokens,
            size.num_blocks * layout.page_bytes / GIB,
            len(layout.groups),
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


def _device_memory(device: torch.device) -> DeviceMemory | None:
    if device.type != "cuda":
        return None
    free, total = torch.cuda.mem_get_info(device)
    return DeviceMemory(total=total, free=free)


def _workspace(model: object, config: EngineConfig, folder: ModelFolder, num_slots: int) -> int:
    """Scratch of the largest step, and of the recorded ones, which keep theirs; device state."""
    num_tokens = config.scheduler.max_num_batched_tokens + num_slots
    state_bytes = 4 * num_slots * folder.max_model_len
    if isinstance(model, HasWorkspace):
        return model.workspace_bytes(num_tokens) + state_bytes
    # A step may draw for all its rows and compute prompt logprobs, these some rows at a time.
    num_logit_rows = num_slots + LOGIT_ROWS
    return workspace_bytes(dict(folder.config), num_tokens, num_logit_rows) + state_bytes
