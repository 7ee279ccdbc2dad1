"""vLLM's names that are others here, or none: what is done with them, and what is said.

``docs/from-vllm.md`` shows these tables, which know every flag and route of the version that
``benchmarks/vllm_names.txt`` lists. In texts names of ours stand in backticks, as keywords.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

_NOT_YET = "not available yet, so leave it out"
_BALANCER = "one server for each, behind a balancer"
_OTHER_KIND = "no model here needs it"
_BACKEND = "requests name it, as guided_decoding_backend or GuidedParams(backend=...)"

GUIDED_BACKENDS: Final[Mapping[str, str]] = {
    "guidance": "llguidance",
    "lm-format-enforcer": "lm_format_enforcer",
}
"""Names of backends of structured output, and what they are called here."""

_RENAMED: Final[Mapping[str, str]] = {
    "api_server_count=": "api_workers",
    "disable_access_log_for_endpoints=": "access_log_skip",
    "disable_log_requests": "no_log_requests",
    "disable_uvicorn_access_log": "no_access_log",
    "enable_log_outputs": "log_outputs",
    "enable_log_requests": "log_requests",
    "h11_max_header_count=": "max_header_count",
    "h11_max_incomplete_event_size=": "max_header_kib",
    "kv_cache_memory_bytes=": "kv_cache_memory_gib",
    "max_log_len=": "max_log_chars",
    "num_gpu_blocks_override=": "num_blocks",
    "shutdown_timeout=": "drain_timeout_seconds",
}
"""Flags that work under both names; bytes become the unit that ours counts in.

In all tables ``name`` is a switch, ``name=`` takes a value, ``name=*`` several, and a refused one
takes A and B of ``name=A|B``, as they ask for nothing.
"""
_NOTED: Final[Mapping[str, tuple[str, ...]]] = {
    "steps are always planned ahead; `async_depth` 1 waits for each": ("async_scheduling",),
    "always so, and `max_num_batched_tokens` is the size of a step": ("enable_chunked_prefill",),
    "always so": (
        "enable_prompt_tokens_details", "enable_request_id_headers", "enable_server_load_tracking",
        "enable_offline_docs", "exclude_tools_when_tool_choice_none",
    ),
    "decode steps are recorded whatever their size, unless `enforce_eager` is on": (
        "compilation_config=", "cudagraph_capture_sizes=*", "max_cudagraph_capture_size=",
        "optimization_level=", "performance_mode=",
    ),
    "kernels are chosen by model and device, and nothing is compiled while serving": (
        "attention_config=", "moe_backend=", "linear_backend=", "ir_op_priority=", "kernel_config=",
        "enable_flashinfer_autotune", "enable_bf16x3_router_gemm", "gdn_prefill_backend=",
        "mamba_backend=", "disable_cascade_attn", "mm_encoder_attn_backend=", "use_fp64_gumbel",
        "jit_monitor_mode=", "jit_monitor_verbose", "kv_sharing_fast_prefill",
    ),
    "/metrics has what is counted, and the log no statistics": (
        "disable_log_stats", "aggregate_engine_logging", "kv_cache_metrics", "cudagraph_metrics",
        "kv_cache_metrics_sample=", "enable_mfu_metrics", "show_hidden_metrics_for_version=",
        "enable_logging_iteration_details", "enable_layerwise_nvtx_tracing", "profiler_config=",
        "collect_detailed_traces=*",
    ),
    "the template shows it": ("chat_template_content_format=", "interleave_mm_strings"),
    "one device is all that there is yet": (
        "disable_custom_all_reduce", "disable_nccl_for_dp_synchronization", "all2all_backend=",
        "expert_placement_strategy=", "distributed_timeout_seconds=",
        "cpu_distributed_timeout_seconds=", "max_parallel_loading_workers=",
        "ray_workers_use_nsight", "mm_encoder_tp_mode=", "dcp_comm_backend=",
        "dcp_kv_cache_interleave_size=", "cp_kv_cache_interleave_size=", "enable_ep_weight_filter",
    ),
    "what is read is fetched, and weights go straight into their places, in parallel": (
        "ignore_patterns=*", "use_tqdm_on_load", "safetensors_load_strategy=",
        "safetensors_prefetch_num_threads=", "safetensors_prefetch_block_size=",
        "pt_load_map_location=", "model_loader_extra_config=",
    ),
    "media are read in `media_threads`, and kept within `mm_processor_cache_gb`": (
        "mm_processor_cache_type=", "mm_shm_cache_max_object_size_mb=", "mm_tensor_ipc=",
        "mm_ipc_gpu_memory_gb=", "renderer_num_workers=", "disable_chunked_mm_input",
    ),
    "memory is budgeted by arithmetic, without a trial": ("skip_mm_profiling",),
    "chunks of all prompts share a step, and the cache admits what it has room for": (
        "max_num_partial_prefills=", "max_long_partial_prefills=", "prefill_schedule_interval=",
        "scheduler_reserve_full_isl", "watermark=",
    ),
    "SHA-256 is the only one": ("prefix_caching_hash_algo=",),
    "layers of a kind share tables by themselves": ("disable_hybrid_kv_cache_manager",),
    "adapters share one pool, in the model's dtype": (
        "lora_dtype=", "fully_sharded_loras", "specialize_active_lora",
        "enable_mixed_moe_lora_format", "enable_moe_shared_loras",
    ),
    "numactl places processes": ("numa_bind", "numa_bind_nodes=*", "numa_bind_cpus=*"),
    "what is not read is told": ("fail_on_environ_validation", "allow_deprecated_quantization"),
    "failures are logged with their stacks, outputs at their ends": (
        "log_error_stack", "enable_log_deltas",
    ),
    "no model here scores": ("enable_flash_late_interaction",),
}  # fmt: skip
"""Flags that are taken and told on the log, by why they need no effect."""
_REFUSED: Final[Mapping[str, tuple[str, ...]]] = {
    _NOT_YET: (
        "calculate_kv_scales", "convert=auto|none", "cpu_offload_gb=0", "cpu_offload_params=*",
        "dbo_decode_token_threshold=", "dbo_prefill_token_threshold=",
        "decode_context_parallel_size=1", "default_mm_loras=", "diffusion_config=",
        "ec_transfer_config=", "enable_cumem_allocator", "enable_dbo", "enable_elastic_ep",
        "enable_eplb", "enable_expert_parallel", "enable_per_request_metrics",
        "enable_prompt_embeds", "enable_return_routed_experts", "enable_sleep_mode",
        "enable_tower_connector_lora", "eplb_config=", "grpc", "headless",
        "kv_cache_dtype_skip_layers=*", "kv_events_config=", "kv_offloading_backend=",
        "kv_offloading_size=", "kv_transfer_config=",
        "lora_target_modules=*", "master_addr=", "master_port=", "mm_encoder_attn_dtype=",
        "mm_encoder_fp8_scale_path=", "mm_encoder_fp8_scale_save_margin=",
        "mm_encoder_fp8_scale_save_path=", "mm_encoder_only", "nnodes=1", "node_rank=0",
        "offload_backend=auto", "offload_group_size=", "offload_num_in_group=", "offload_params=*",
        "offload_prefetch_step=", "pooler_config=", "prefill_context_parallel_size=1",
        "quantization_config=", "reasoning_config=", "spec_method=", "spec_model=", "spec_tokens=",
        "speculative_config=", "tokens_only", "ubatch_size=0|1", "video_pruning_rate=0|0.0",
        "weight_transfer_config=",
    ),
    _BALANCER: (
        "data_parallel_address=", "data_parallel_backend=", "data_parallel_external_lb",
        "data_parallel_hybrid_lb", "data_parallel_multi_port_external_lb", "data_parallel_rank=",
        "data_parallel_rpc_port=", "data_parallel_size=1", "data_parallel_size_local=1",
        "data_parallel_start_rank=", "data_parallel_supervisor_port=",
        "dp_supervisor_probe_failure_threshold=", "dp_supervisor_probe_interval_s=",
        "dp_supervisor_probe_timeout_s=",
    ),
    _OTHER_KIND: ("prefix_match_unit=",),
    "recurrent states are of the types that a model's layers name": (
        "enable_mamba_cache_stochastic_rounding", "mamba_cache_dtype=auto",
        "mamba_cache_philox_rounds=", "mamba_ssm_cache_dtype=auto",
    ),
    "`checkpoint_tokens`": ("mamba_block_size=",),
    "`enable_prefix_caching`, and `checkpoint_tokens`": ("mamba_cache_mode=",),
    _BACKEND: ("structured_outputs_config=", "guided_decoding_backend=auto"),
    "a plugin's, as `plugin`": (
        "io_processor_plugin=", "reasoning_parser_plugin=", "scheduler_cls=", "tool_parser_plugin=",
        "worker_cls=auto", "worker_extension_cls=",
    ),
    "options of plugins, --plugin.NAME.KEY": ("additional_config=",),
    "routes of a plugin, as `plugin`, or a proxy before the server": ("middleware=*",),
    "clients run their tools, so leave it out": ("tool_server=",),
    "`executor`": ("distributed_executor_backend=mp|uni",),
    "`task`": ("runner=auto|generate",),
    "`hf_overrides` replaces entries of config.json": (
        "hf_config_path=", "model_class_overrides=", "config_format=auto|hf",
    ),
    "`dtype` of the whole model": ("override_attention_dtype=",),
    "`max_model_len` of the window's size": ("disable_sliding_window",),
    "`max_num_batched_tokens`": ("max_num_scheduled_tokens=",),
    "`swap_gib`, with `preemption_mode` swap": ("swap_space=0",),
    "the environment's CUDA_VISIBLE_DEVICES": ("device_ids=*",),
    "the environment's HF_HUB_CACHE": ("download_dir=",),
    "the environment's HF_TOKEN": ("hf_token=",),
    "the environment's OCTAVO_LOGGING_CONFIG": ("log_config_file=",),
    "it names release and model, so leave it out": (
        "fingerprint_mode=full|hash", "fingerprint_value=",
    ),
    "`revision`, which names code and weights alike": ("code_revision=",),
}  # fmt: skip
"""Refused flags, which would change what one gets, by what to do instead."""
SHORT: Final[Mapping[str, str]] = {
    "-asc": "api_server_count",
    "-ac": "attention_config",
    "-cc": "compilation_config",
    "-dc": "diffusion_config",
    "-dcp": "decode_context_parallel_size",
    "-dp": "data_parallel_size",
    "-dpa": "data_parallel_address",
    "-dpb": "data_parallel_backend",
    "-dpe": "data_parallel_external_lb",
    "-dph": "data_parallel_hybrid_lb",
    "-dpl": "data_parallel_size_local",
    "-dpm": "data_parallel_multi_port_external_lb",
    "-dpn": "data_parallel_rank",
    "-dpp": "data_parallel_rpc_port",
    "-dpr": "data_parallel_start_rank",
    "-ep": "enable_expert_parallel",
    "-n": "nnodes",
    "-O": "optimization_level",
    "-pcp": "prefill_context_parallel_size",
    "-pp": "pipeline_parallel_size",
    "-q": "quantization",
    "-r": "node_rank",
    "-sc": "speculative_config",
    "-tp": "tensor_parallel_size",
}
"""Flags' short forms, where a command has no other meaning for them."""
PARAMETERS: Final[Mapping[str, str]] = {
    "guided_decoding": "`guided`",
    "structured_outputs": "`guided`",
}
"""Names of ``SamplingParams``."""
VALUES: Final[Mapping[str, Mapping[object, str]]] = {
    "dtype": {"half": "float16", "float": "float32"},
    "generation_config": {"vllm": "none"},
    "kv_cache_dtype": {"fp8_e4m3": "fp8"},
    "load_format": {"safetensors": "auto"},
    "max_model_len": {-1: "auto", "-1": "auto"},
    "model_impl": {"vllm": "octavo"},
}
"""Values of options that are called otherwise here."""
VARIABLES: Final[Mapping[str, str]] = {
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "OCTAVO_ALLOW_RUNTIME_LORA_UPDATING",
    "VLLM_API_KEY": "OCTAVO_API_KEY",
    "VLLM_ATTENTION_BACKEND": "`attention_backend`",
    "VLLM_BATCH_INVARIANT": "`batch_invariant`",
    "VLLM_CACHE_ROOT": "XDG_CACHE_HOME",
    "VLLM_CONFIG_ROOT": "XDG_CONFIG_HOME",
    "VLLM_DO_NOT_TRACK": "DO_NOT_TRACK",
    "VLLM_IMAGE_FETCH_TIMEOUT": "`media_fetch_timeout`",
    "VLLM_AUDIO_FETCH_TIMEOUT": "`media_fetch_timeout`",
    "VLLM_VIDEO_FETCH_TIMEOUT": "`media_fetch_timeout`",
    "VLLM_LOGGING_CONFIG_PATH": "OCTAVO_LOGGING_CONFIG",
    "VLLM_LOGGING_LEVEL": "OCTAVO_LOGGING_LEVEL",
    "VLLM_LORA_RESOLVER_CACHE_DIR": "`lora_dir`",
    "VLLM_MAX_AUDIO_CLIP_FILESIZE_MB": "`max_media_mib`",
    "VLLM_MEDIA_LOADING_THREAD_COUNT": "`media_threads`",
    "VLLM_NO_USAGE_STATS": "OCTAVO_NO_USAGE_STATS",
    "VLLM_PLUGINS": "`plugin` and `disable_plugin`",
    "VLLM_TRACE_FUNCTION": "OCTAVO_TRACE_FUNCTION",
    "VLLM_USAGE_STATS_SERVER": "OCTAVO_USAGE_STATS_URL",
    "VLLM_USE_MODELSCOPE": "OCTAVO_USE_MODELSCOPE",
}
"""Environment variables that others stand for; the rest have no meaning here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What becomes of a flag of vLLM's that is none of ours."""

    name: str
    kind: Literal["renamed", "noted", "refused"]
    text: str
    takes: Literal["nothing", "value", "values"]
    harmless: tuple[str, ...] = ()
    """Values of a refused one that ask for nothing."""


def verdicts() -> Iterator[Verdict]:
    """Go through all flags that are taken or refused by a name which is not ours."""
    for entry, ours in _RENAMED.items():
        yield _read("renamed", f"`{ours}`", entry)
    for text, entries in _NOTED.items():
        yield from (_read("noted", text, entry) for entry in entries)
    for text, entries in _REFUSED.items():
        yield from (_read("refused", text, entry) for entry in entries)


def _read(kind: Literal["renamed", "noted", "refused"], text: str, entry: str) -> Verdict:
    name, equals, rest = entry.partition("=")
    takes: Literal["nothing", "value", "values"] = "nothing"
    if equals:
        takes = "values" if rest == "*" else "value"
    harmless = tuple(rest.split("|")) if takes == "value" and rest else ()
    return Verdict(name=name, kind=kind, text=text, takes=takes, harmless=harmless)


def as_keywords(text: str) -> str:
    """Return a text of these tables as Python's users read it."""
    return text.replace("`", "")


def as_flags(text: str) -> str:
    """Return a text of these tables as users of the command line read it."""
    return re.sub(r"`(\w+)`", lambda found: "--" + found[1].replace("_", "-"), text)


def here(name: str) -> str | None:
    """Say what stands here in the place of a name of vLLM's; None for names that are not its own.

    The text is one of the tables'.
    """
    if name in PARAMETERS:
        return PARAMETERS[name]
    name = name.removeprefix("no_")
    return next((verdict.text for verdict in verdicts() if verdict.name == name), None)
