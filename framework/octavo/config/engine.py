"""All that an engine is started with: one frozen dataclass per concern, validated at construction.

Option names are the keyword arguments of ``LLM`` and the flags of the command line. Nothing here
reads a file or asks a device.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from octavo.config.checks import check_choice, check_range
from octavo.config.lora import LoRAConfig
from octavo.config.media import MediaConfig
from octavo.errors import ConfigError
from octavo.limits import MAX_LOGPROBS
from octavo.wording import shown

DTYPES = ("auto", "float32", "bfloat16", "float16")
LOGPROBS_MODES = ("raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits")
MAX_THREADS = 1024
"""The threads of a CPU kernel are made at once, and a process that cannot make them crashes."""
MAX_ASYNC_DEPTH = 16
MAX_SEED = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Which model, and how it is loaded."""

    model: str
    """A folder, or a name that a source plugin knows."""
    tokenizer: str | None = None
    """Folder or name of the tokenizer; None: the model's own."""
    tokenizer_revision: str | None = None
    """The tokenizer's revision; None: as ``revision``."""
    tokenizer_mode: str = "auto"
    """A registered tokenizer's name."""
    task: str = "auto"
    dtype: str = "auto"
    load_format: Literal["auto", "dummy"] = "auto"
    model_impl: str = "auto"
    """What runs the architecture: "octavo": the model registered for it; "auto": that one, else
    what plugins choose; else a registered model's name, such as "transformers"."""
    revision: str | None = None
    trust_remote_code: bool = False
    hf_overrides: dict[str, Any] = field(default_factory=dict)
    """Replaces entries of config.json."""
    skip_tokenizer_init: bool = False
    max_model_len: int | Literal["auto"] | None = None
    """Tokens of prompt and output together; None: the model's; "auto": what memory allows."""
    quantization: str | None = None
    attention_backend: str | None = None
    """A registered backend's name; None lets plugins choose."""
    chat_template: str | None = None
    """A file, or the template itself; None: the tokenizer's."""
    trust_message_tokens: bool = False
    """Text such as "<|im_end|>" in a message is the control token, and not text."""
    default_chat_template_kwargs: dict[str, Any] = field(default_factory=dict)
    """Variables of the chat template for chats that do not set them: {"enable_thinking": false}."""
    tool_call_parser: str | None = "auto"
    """A registered tool parser's name; "auto": the one that plugins choose by the model's chat
    template; None (in Python) leaves calls in the text."""
    enable_auto_tool_choice: bool = True
    """Whether requests may leave it to the model if it calls tools."""
    reasoning_parser: str | None = None
    """A registered reasoning parser's name; "auto": the one that plugins choose by the model's
    chat template, if any does; None leaves reasoning in the text."""
    generation_config: Literal["auto", "none"] = "auto"
    """Whether generation_config.json gives the default sampling parameters."""
    override_generation_config: dict[str, Any] = field(default_factory=dict)
    """Entries of generation_config.json, such as {"temperature": 0.5}: defaults of sampling
    parameters, whatever generation_config says."""
    max_logprobs: int | None = None
    """How many of a token requests may ask for; None: 20 over HTTP and 128 in Python."""
    logprobs_mode: Literal[
        "raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits"
    ] = "raw_logprobs"
    """What logprobs of outputs are: of the model itself, or of what tokens are sampled by, after
    penalties, temperature and cuts; or the logits. Those of prompts are the model's own."""
    seed: int = 0
    """Requests without a seed of their own take one from it, so a script repeats its tokens."""
    device: str = "auto"
    num_threads: int | None = None
    """CPU threads of the model; None: torch's choice, and fewer for a model that is small."""
    enforce_eager: bool = False
    """Launch every kernel anew on CUDA instead of recording decode steps (for debugging)."""
    batch_invariant: bool = False
    """Equal tokens in 16-bit too, whatever else runs: slower kernels with fixed splits."""

    def __post_init__(self) -> None:
        if not isinstance(self.model, str) or not self.model:
            raise ConfigError(f"model={self.model!r} must be a folder or a name")
        check_choice("dtype", self.dtype, DTYPES)
        check_choice("load_format", self.load_format, ("auto", "dummy"))
        check_choice("logprobs_mode", self.logprobs_mode, LOGPROBS_MODES)
        check_choice("generation_config", self.generation_config, ("auto", "none"))
        if self.max_model_len not in (None, "auto"):
            check_range("max_model_len", self.max_model_len, 1)
        if self.max_logprobs is not None:
            check_range("max_logprobs", self.max_logprobs, 0, MAX_LOGPROBS)
        if self.num_threads is not None:
            check_range("num_threads", self.num_threads, 1, MAX_THREADS)
        check_range("seed", self.seed, -MAX_SEED, MAX_SEED)


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    """The paged pool."""

    block_size: int = 16
    """Tokens in a block; a power of two."""
    gpu_memory_utilization: float = 0.9
    """Part of the device's memory that the engine may use in all."""
    kv_cache_memory_gib: float | None = None
    """Size of the pool; None: by arithmetic on CUDA; on a CPU what all rows can use, at
    most 4 GiB and half of the memory that is free."""
    num_blocks: int | None = None
    """Exact size of the pool, for tests and benchmarks; overrides the others."""
    kv_cache_dtype: str = "auto"
    enable_prefix_caching: bool = True
    swap_gib: float = 4.0
    """Host memory for preempted sequences, used with preemption_mode="swap"."""
    num_state_lines: int | None = None
    """Sequences and checkpoints whose recurrent states are in memory, for models that have such
    states; None: twice max_num_seqs, in at most half of the pool's memory."""
    checkpoint_tokens: int = 1024
    """A prompt's recurrent states are kept behind each so many tokens, rounded up to blocks, for
    prompts that begin alike."""

    def __post_init__(self) -> None:
        size = self.block_size
        if not isinstance(size, int) or size < 1 or size & (size - 1):
            raise ConfigError(f"block_size={shown(size)} is not a power of two; try 8, 16 or 32")
        if not 0.0 < self.gpu_memory_utilization <= 1.0:
            raise ConfigError(
                f"gpu_memory_utilization={self.gpu_memory_utilization!r} must be above 0, at most 1"
            )
        if self.kv_cache_memory_gib is not None:
            check_range("kv_cache_memory_gib", self.kv_cache_memory_gib, 0)
        if self.num_blocks is not None:
            check_range("num_blocks", self.num_blocks, 2)
        check_choice("kv_cache_dtype", self.kv_cache_dtype, (*DTYPES, "fp8"))
        check_range("swap_gib", self.swap_gib, 0)
        if self.num_state_lines is not None:
            check_range("num_state_lines", self.num_state_lines, 1)
        check_range("checkpoint_tokens", self.checkpoint_tokens, 1)

    @property
    def whole_checkpoint_tokens(self) -> int:
        """``checkpoint_tokens`` in whole blocks; 0 where no prefix is kept."""
        size = self.block_size
        return -(-self.checkpoint_tokens // size) * size if self.enable_prefix_caching else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """How requests share a step."""

    max_num_seqs: int | None = None
    """Rows: sequences that run at the same time; None: 1024 on CUDA, 256 on a CPU."""
    max_num_batched_tokens: int = 8192
    """Tokens of one step, prefill chunks and decodes together."""
    scheduling_policy: Literal["fcfs", "priority"] = "fcfs"
    long_prefill_token_threshold: int = 0
    """Prompt tokens of one request in a step, so that longer prompts leave room for others; 0: all
    that there is room for."""
    stream_interval: int = 1
    """Tokens in an event of a stream, but for its first and its last."""
    preemption_mode: Literal["recompute", "swap"] = "recompute"
    max_queued_requests: int | None = None
    """Waiting requests above which new ones are refused; None: no limit."""
    max_queued_tokens: int | None = None
    async_depth: int = 2
    """Steps under way at once; 1 waits for each step before the next is planned (for debugging)."""

    def __post_init__(self) -> None:
        check_range("max_num_batched_tokens", self.max_num_batched_tokens, 1)
        check_range("long_prefill_token_threshold", self.long_prefill_token_threshold, 0)
        check_range("stream_interval", self.stream_interval, 1)
        check_range("async_depth", self.async_depth, 1, MAX_ASYNC_DEPTH)
        check_choice("scheduling_policy", self.scheduling_policy, ("fcfs", "priority"))
        check_choice("preemption_mode", self.preemption_mode, ("recompute", "swap"))
        for name in ("max_num_seqs", "max_queued_requests", "max_queued_tokens"):
            if getattr(self, name) is not None:
                check_range(name, getattr(self, name), 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelConfig:
    """How many devices, and what starts their workers."""

    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    executor: str | None = None
    """A registered executor's name; None: "local" for one device, "ranks" for several."""

    def __post_init__(self) -> None:
        check_range("tensor_parallel_size", self.tensor_parallel_size, 1)
        check_range("pipeline_parallel_size", self.pipeline_parallel_size, 1)

    @property
    def num_devices(self) -> int:
        """One for each rank."""
        return self.tensor_parallel_size * self.pipeline_parallel_size


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Everything; crosses to the engine process as msgpack."""

    model: ModelConfig
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    media: MediaConfig = field(default_factory=MediaConfig)
    lora: LoRAConfig = field(default_factory=LoRAConfig)
    logits_processors: tuple[str, ...] = ()
    """Registered processors to run on every step's logits, in order."""
    plugin_options: dict[str, dict[str, Any]] = field(default_factory=dict)
    """``--plugin.NAME.KEY`` values by plugin name."""
