"""One device's part of an engine: model, cache and runner, made in two phases.

Between them the ranks agree on how much each takes.
"""

from __future__ import annotations

import logging
import time
from typing import Any, Protocol

import torch

from octavo.cache.budget import GIB, DeviceMemory
from octavo.cache.groups import CacheLayout
from octavo.config import EngineConfig
from octavo.errors import ConfigError
from octavo.execution.agreement import RankFacts, agree
from octavo.execution.cache_memory import CacheMemory
from octavo.execution.layer_count import LayerCount
from octavo.execution.media_encoder import MediaEncoder
from octavo.execution.pooled_runner import PooledRunner
from octavo.execution.runner import ModelRunner
from octavo.execution.sizing import adapter_rows, cache_choice, size_engine
from octavo.execution.state_memory import StateMemory
from octavo.host_memory import host_memory
from octavo.layers.adapted import AdapterRows
from octavo.messages import AdapterFacts
from octavo.model_folder import ModelFolder
from octavo.model_folder.pooling import PoolingSetup
from octavo.sampling.automata import masks_on
from octavo.sampling.forward import Sampled
from octavo.sampling.processors import GuardedProcessor
from octavo.steps.plan import TokenMasks
from octavo.steps.recording import Recording
from octavo.weights.load import load_model
from octavo.wording import counted
from octavo_registry import PluginHost
from octavo_registry.executor import ExecutorFacts
from octavo_registry.model import EncodesMedia, Model
from octavo_registry.ranks import ONE_RANK, Ranks

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


class Runner(Protocol):
    """What runs steps in order; each launches one, and the device goes on by itself."""

    model: Model
    layers: LayerCount

    def run(self, plan: Any) -> Sampled | None:
        """Launch a step; None for one that awaits masks: ``sample`` completes it."""
        ...

    def sample(self, masks: TokenMasks) -> Sampled:
        """Complete the step that awaits masks."""
        ...

    @property
    def can_record(self) -> bool:
        """Whether ``prepare`` may do something."""
        ...

    def prepare(self, recording: Recording) -> bool:
        """Record a step that plans may name; False: they must not."""
        ...

    def close(self) -> None:
        """Free what refers to the runner."""
        ...


class Worker:
    """Loads a rank's part of the model; its ``runner`` then takes plans in order.

    ``measure`` and ``allocate`` are called once each, on the thread that will run the steps.
    """

    runner: Runner

    def __init__(
        self,
        config: EngineConfig,
        folder: ModelFolder,
        host: PluginHost,
        ranks: Ranks = ONE_RANK,
    ) -> None:
        self._config, self._folder, self._host, self._ranks = config, folder, host, ranks
        self.device = choose_device(config.model.device)

    def measure(self) -> RankFacts:
        """Load the weights; say what is left, and what the cache and steps would take of it."""
        config, folder, host = self._config, self._folder, self._host
        self._start = time.monotonic()
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        self._adapters = adapters = adapter_rows(config)
        self._model = load_model(
            folder,
            host,
            config=config.model,
            device=self.device,
            ranks=self._ranks,
            adapters=adapters,
            takes_cache=cache_choice(config, folder, host, self.device),
        )
        self._sizing = sizing = size_engine(
            self._model, config, folder, host, device=self.device, adapters=adapters
        )
        queries = (backend.most_recorded_queries for backend in sizing.backends.values())
        return RankFacts(
            ranks=self._ranks,
            memory=device_memory(self.device),
            workspace_bytes=sizing.workspace_bytes,
            num_slots=sizing.num_slots,
            specs=sizing.specs,
            page_bytes=sizing.page_bytes,
            most_recorded_queries=min(queries, default=1),
            masks_on_device=masks_on(self.device),
            max_step_tokens=sizing.max_step_tokens,
            adapters=None if adapters is None else adapter_facts(adapters, config, folder),
        )

    def allocate(self, agreed: ExecutorFacts) -> None:
        """Make the cache and the device state, as agreed for all ranks."""
        config, folder = self._config, self._folder
        layout: CacheLayout = agreed.layout.held_by(self._sizing.specs)
        if folder.pooling is not None:
            self._read_texts(layout, folder.pooling)
            return
        host = self._host
        encoder = None
        if isinstance(self._model, EncodesMedia):
            dtype: torch.dtype = getattr(torch, folder.dtype)
            num_rows = config.media.cached_rows(across=layout.max_cross_rows > 0)
            encoder = MediaEncoder(self._model, num_rows, dtype, self.device)
        on_cuda = self.device.type == "cuda"
        self.runner = ModelRunner(
            model=self._model,
            layout=layout,
            state_layout=agreed.state,
            memory=CacheMemory(
                layout,
                agreed.num_blocks,
                agreed.num_swap_blocks,
                self.device,
                None
                if layout.lines is None
                else StateMemory(
                    layout.lines, agreed.num_lines, agreed.num_swap_lines, self.device
                ),
            ),
            backends=[
                self._sizing.backends[group.spec] if group.layers else None
                for group in layout.groups
            ],
            vocab_size=folder.vocab_size,
            processors=[
                GuardedProcessor(name, host, vocab_size=folder.vocab_size, device=self.device)
                for name in config.logits_processors
            ],
            device=self.device,
            async_depth=config.scheduler.async_depth,
            use_graphs=on_cuda
            and not config.model.enforce_eager
            and agreed.most_recorded_queries > 0,
            batch_invariant=config.model.batch_invariant,
            logprobs_mode=config.model.logprobs_mode,
            position_axes=folder.capabilities.position_axes,
            encoder=encoder,
            adapters=self._adapters,
        )
        log.info(
            "%s on %s in %s, %.1f s; kv cache: %d blocks of %d tokens, %.2f GiB, %s",
            folder.architecture,
            self.device,
            folder.dtype,
            time.monotonic() - self._start,
            agreed.num_blocks,
            layout.block_tokens,
            agreed.num_blocks * layout.page_bytes / GIB,
            counted(len(layout.groups), "group"),
        )

    def _read_texts(self, layout: CacheLayout, pooling: PoolingSetup) -> None:
        """Nothing is allocated: steps take what they need."""
        folder = self._folder
        self.runner = PooledRunner(
            model=self._model,
            layout=layout,
            backends=[self._sizing.backends[group.spec] for group in layout.groups],
            collect=pooling.collect,
            device=self.device,
            async_depth=self._config.scheduler.async_depth,
        )
        log.info(
            "%s on %s in %s, %.1f s; %s",
            folder.architecture,
            self.device,
            folder.dtype,
            time.monotonic() - self._start,
            pooling,
        )

    def start(self) -> ExecutorFacts:
        """Load and allocate as the only rank."""
        agreed = agree([self.measure()], self._config, max_model_len=self._folder.max_model_len)
        self.allocate(agreed)
        return agreed


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
