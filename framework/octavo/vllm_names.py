"""vLLM's everyday names that are others here, or none: what an error says of them.

``docs/from-vllm.md`` has them all, flags with their dashes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_RECORDED = "decode steps are recorded whatever their size, unless enforce_eager is on"
_BACKEND = "requests name it, as guided_decoding_backend or GuidedParams(backend=...)"
_NOT_YET = "not available yet, so leave it out"

GUIDED_BACKENDS: Final[Mapping[str, str]] = {
    "guidance": "llguidance",
    "lm-format-enforcer": "lm_format_enforcer",
}
"""Names of backends of structured output, and what they are called here."""

HERE: Final[Mapping[str, str]] = {
    "api_server_count": "api_workers",
    "async_scheduling": "always so, unless async_depth is 1",
    "chat_template_content_format": "known from the template",
    "compilation_config": _RECORDED,
    "cpu_offload_gb": _NOT_YET,
    "cudagraph_capture_sizes": _RECORDED,
    "data_parallel_size": "one server for each, behind a balancer",
    "default_chat_template_kwargs": "chat_template_kwargs of each request",
    "disable_access_log_for_endpoints": "access_log_skip",
    "disable_custom_all_reduce": "one device is all there is yet, so leave it out",
    "disable_log_requests": "so by default, see log_requests",
    "disable_log_stats": "always so, as /metrics has them",
    "disable_uvicorn_access_log": "no_access_log",
    "distributed_executor_backend": "executor",
    "download_dir": "the environment's HF_HUB_CACHE",
    "enable_chunked_prefill": "always so, and max_num_batched_tokens is the size of a step",
    "enable_expert_parallel": _NOT_YET,
    "enable_log_outputs": "log_outputs",
    "enable_log_requests": "log_requests",
    "enable_prompt_embeds": _NOT_YET,
    "enable_prompt_tokens_details": "always so",
    "enable_request_id_headers": "always so",
    "enable_server_load_tracking": "always so",
    "enable_sleep_mode": _NOT_YET,
    "guided_decoding": "guided",
    "guided_decoding_backend": _BACKEND,
    "h11_max_header_count": "max_header_count",
    "h11_max_incomplete_event_size": "max_header_kib",
    "hf_token": "the environment's HF_TOKEN",
    "kv_cache_memory_bytes": "kv_cache_memory_gib",
    "kv_transfer_config": _NOT_YET,
    "log_config_file": "the environment's OCTAVO_LOGGING_CONFIG",
    "max_log_len": "max_log_chars",
    "max_logprobs": "at most 20 over HTTP and 128 in Python",
    "model": "the first argument, without a flag",
    "no_async_scheduling": "async_depth 1",
    "num_gpu_blocks_override": "num_blocks",
    "override_generation_config": "parameters of each request",
    "reasoning_parser_plugin": "plugin",
    "return_tokens_as_token_ids": "a field of requests",
    "runner": "task",
    "speculative_config": _NOT_YET,
    "structured_outputs": "guided",
    "structured_outputs_config": _BACKEND,
    "swap_space": "swap_gib, with preemption_mode swap",
    "tool_parser_plugin": "plugin",
    "uvicorn_log_level": "the environment's OCTAVO_LOGGING_LEVEL",
}
