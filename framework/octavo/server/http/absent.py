"""Paths that clients of OpenAI or of vLLM's server may ask for, and why they are not here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_PATHS: Final[Mapping[str, tuple[str, ...]]] = {
    "this version serves no models that embed, classify or score": (
        "/v1/embeddings", "/v2/embed", "/pooling", "/classify", "/score", "/v1/score", "/rerank",
        "/v1/rerank", "/v2/rerank",
    ),
    "this server keeps no conversations or files": (
        "/v1/conversations", "/v1/conversations/", "/v1/files", "/v1/files/",
        "/v1/uploads", "/v1/uploads/", "/v1/vector_stores", "/v1/vector_stores/",
    ),
    "octavo run-batch answers files of requests": ("/v1/batches", "/v1/batches/"),
    "this version answers in text": (
        "/v1/images/", "/v1/audio/speech", "/v1/videos", "/v1/videos/", "/v1/realtime",
    ),
    "this model does not write down what is said": (
        "/v1/audio/transcriptions", "/v1/audio/translations",
    ),
    "/capabilities and /plugins tell what this server is": ("/server_info",),
    "there are no routes for development": (
        "/reset_prefix_cache", "/reset_mm_cache", "/reset_encoder_cache", "/sleep", "/wake_up",
        "/is_sleeping", "/pause", "/resume", "/is_paused", "/abort_requests", "/collective_rpc",
        "/start_profile", "/stop_profile",
    ),
    "weights are those that the server was started with": (
        "/init_weight_transfer_engine", "/start_weight_update", "/start_draft_weight_update",
        "/update_weights", "/finish_weight_update",
    ),
    "one device is all that there is yet": (
        "/get_world_size", "/scale_elastic_ep", "/is_scaling_elastic_ep",
    ),
    "/health tells whether this server is ready": ("/ready", "/readyz"),
    "/v1/completions takes token ids, and gives them with return_token_ids": (
        "/inference/v1/generate", "/generative_scoring",
    ),
    "/tokenize shows what a model reads": (
        "/v1/completions/render", "/v1/chat/completions/render",
    ),
    "/detokenize and /parse_tool_calls read what a model wrote": (
        "/v1/completions/derender", "/v1/chat/completions/derender",
    ),
    "its operator may allow it with --enable-tokenizer-info-endpoint": ("/tokenizer_info",),
    "its operator may allow it with --allow-runtime-lora": (
        "/v1/load_lora_adapter", "/v1/unload_lora_adapter",
    ),
}  # fmt: skip
"""Paths by why they are absent; one that ends in / is what paths begin with."""
OPTIONAL: Final = {
    "this model does not write down what is said": "with a model that hears",
    "its operator may allow it with --enable-tokenizer-info-endpoint": (
        "with `--enable-tokenizer-info-endpoint`"
    ),
    "its operator may allow it with --allow-runtime-lora": "with `--allow-runtime-lora`",
}
"""When the path is there, by the reason that is given."""
NO_REASON: Final = "/docs shows all"
_REASONS: Final = {path: reason for reason, paths in _PATHS.items() for path in paths}


def why_absent(path: str) -> str:
    """What may be said of a path that is not there."""
    for known, reason in _REASONS.items():
        if path == known or (known.endswith("/") and path.startswith(known)):
            return reason
    return NO_REASON
