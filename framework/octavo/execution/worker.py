"""One device's part of an engine: model, cache and runner."""

from __future__ import annotations

import logging
import time

import torch

from octavo.cache.budget import GIB, DeviceMemory, size_pool
from octavo.config import EngineConfig
from octavo.errors import CacheError, ConfigError
from octavo.execution.cache_memory import CacheMemory
from octavo.execution.media_encoder import MediaEncoder
from octavo.execution.runner import ModelRunner
from octavo.execution.sizing import adapter_rows, cache_choice, size_engine
from octavo.host_memory import host_memory
from octavo.layers.adapted import AdapterRows
from octavo.messages import AdapterFacts
from octavo.model_folder import ModelFolder
from octavo.sampling.automata import masks_on
from octavo.sampling.processors import GuardedProcessor
from octavo.steps.layout import StateLayout
from octavo.weights.load import load_model
from octavo.wording import counted
from octavo_registry import PluginHost
from octavo_registry.executor import ExecutorFacts
from octavo_registry.model import EncodesMedia

log = logging.getLogger(__name__)


def choose_device(name: str) -> torch.device:
    """The device of that name; "auto" is the first CUDA device where there is one."""
    if name == "auto":
        return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"device={name!r} is not a torch device; try 'cpu' or 'cuda'") from error
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"device={name!r} is none that models run on; try 'cpu' or 'cuda'")
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
        adapters = adapter_rows(config)
        model = load_model(
            folder,
            host,
            config=config.model,
            device=self.device,
            adapters=adapters,
            takes_cache=cache_choice(config, folder, host, self.device),
        )
        sizing = size_engine(model, config, folder, host, device=self.device, adapters=adapters)
        layout, num_slots = sizing.layout, sizing.num_slots
        here = device_memory(self.device)
        size = size_pool(
            config,
            layout,
            memory=here,
            workspace=sizing.workspace_bytes,
            num_slots=num_slots,
            max_model_len=folder.max_model_len,
            shrink_context=config.model.max_model_len == "auto",
        )
        if here.is_host and size.num_blocks * layout.page_bytes > here.free:
            # Its pages are taken when they are written: the process would be ended amid requests.
            raise CacheError(
                f"the KV cache of {size.num_blocks * layout.page_bytes / GIB:.3g} GiB is more than "
                f"the {here.free / GIB:.3g} GiB of memory that are free; lower kv_cache_memory_gib "
                "or num_blocks, or end other programs"
            )
        block_tokens = layout.block_tokens
        state = StateLayout(
            num_slots=num_slots,
            max_model_len=size.max_model_len,
            max_blocks=layout.table_blocks(size.max_model_len),
            num_groups=len(layout.groups),
        )
        encoder = None
        if isinstance(model, EncodesMedia):
            dtype: torch.dtype = getattr(torch, folder.dtype)
            num_rows = config.media.cached_rows(across=layout.max_cross_rows > 0)
            encoder = MediaEncoder(model, num_rows, dtype, self.device)
        memory = CacheMemory(layout, size.num_blocks, size.num_swap_blocks, self.device)
        self.runner = ModelRunner(
            model=model,
            layout=layout,
            state_layout=state,
            memory=memory,
            backends=[sizing.backends[group.spec] for group in layout.groups],
            vocab_size=folder.vocab_size,
            processors=[
                GuardedProcessor(name, host, vocab_size=folder.vocab_size, device=self.device)
                for name in config.logits_processors
            ],
            device=self.device,
            async_depth=config.scheduler.async_depth,
            use_graphs=self.device.type == "cuda" and not config.model.enforce_eager,
            batch_invariant=config.model.batch_invariant,
            logprobs_mode=config.model.logprobs_mode,
            position_axes=folder.capabilities.position_axes,
            encoder=encoder,
            adapters=adapters,
        )
        self.runner.warm_up()
        self.facts = ExecutorFacts(
            layout=layout,
            state=state,
            num_blocks=size.num_blocks,
            num_swap_blocks=size.num_swap_blocks,
            max_model_len=size.max_model_len,
            adapters=None if adapters is None else adapter_facts(adapters, config, folder),
            masks_on_device=masks_on(self.device),
        )
        log.info(
            "%s on %s in %s, %.1f s; kv cache: %d blocks of %d tokens, %.2f GiB, %s",
            folder.architecture,
            self.device,
            folder.dtype,
            time.monotonic() - start,
            size.num_blocks,
            block_tokens,
            size.num_blocks * layout.page_bytes / GIB,
            counted(len(layout.groups), "group"),
        )


def adapter_facts(rows: AdapterRows, config: EngineConfig, folder: ModelFolder) -> AdapterFacts:
    """What adapters of this model must be like."""
    return AdapterFacts(
        linears={
            name: (size.inputs, size.outputs, size.transposed, size.experts)
            for name, size in rows.linears.items()
        },
        max_rank=config.lora.highest_rank,
        dtype=folder.dtype,
    )


def device_memory(device: torch.device) -> DeviceMemory:
    """Bytes of the device as they are now."""
    if device.type != "cuda":
        return DeviceMemory.of_host(host_memory())
    free, total = torch.cuda.mem_get_info(device)
    return DeviceMemory(total=total, free=free)
