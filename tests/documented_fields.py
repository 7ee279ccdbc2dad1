"""The fields that OpenAI, Anthropic and vLLM document, by route, from pinned type definitions."""

from __future__ import annotations

import re
from importlib import import_module
from pkgutil import walk_packages
from typing import Any, get_type_hints

import anthropic.types
import openai.types
from anthropic.types import (
    MessageCountTokensParams,
    message_create_params,
)
from anthropic.types.beta import message_count_tokens_params as beta_count_params
from anthropic.types.beta import message_create_params as beta_create_params
from openai.types import completion_create_params
from openai.types.audio import transcription_create_params, translation_create_params
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.responses import response_create_params
from typing_extensions import is_typeddict

from octavo.server.apis.chat import body as chat
from octavo.server.apis.completions import body as completions
from octavo.server.apis.messages import body as messages
from octavo.server.apis.responses import body as responses
from octavo.server.apis.tokenize import body as tokenize
from octavo.server.apis.transcriptions import body as transcriptions

VLLM_SAMPLING = """
    top_k min_p repetition_penalty length_penalty stop_token_ids include_stop_str_in_output
    ignore_eos min_tokens skip_special_tokens spaces_between_special_tokens truncate_prompt_tokens
    allowed_token_ids bad_words use_beam_search prompt_logprobs seed logits_processors
    structured_outputs guided_json guided_regex guided_choice guided_grammar structural_tag
    guided_decoding_backend guided_whitespace_pattern response_format priority request_id cache_salt
    return_tokens_as_token_ids return_token_ids kv_transfer_params vllm_xargs repetition_detection
    add_special_tokens session_id stream_interval ec_transfer_params logprob_token_ids watermarking
    truncation_side routed_experts_prompt_start return_token_offsets return_mm_kwargs
"""
VLLM_CHAT = """
    echo add_generation_prompt continue_final_message documents chat_template chat_template_kwargs
    mm_processor_kwargs media_io_kwargs include_reasoning thinking_token_budget reasoning_effort
    max_tokens max_completion_tokens return_prompt_text
"""
VLLM_RESPONSES = """
    request_id mm_processor_kwargs priority cache_salt enable_response_messages
    previous_input_messages previous_response structured_outputs repetition_penalty seed stop
    ignore_eos vllm_xargs kv_transfer_params skip_special_tokens include_stop_str_in_output
    logit_bias presence_penalty frequency_penalty top_k chat_template_kwargs
"""
VLLM_MESSAGES = " chat_template_kwargs kv_transfer_params"
OLDER_ANTHROPIC = "temperature top_p top_k mcp_servers context_management output_format stream"
VLLM_TRANSLATIONS = """
    language to_language stream stream_include_usage stream_continuous_usage_stats seed
    max_completion_tokens hotwords use_beam_search n length_penalty
"""
VLLM_TRANSCRIPTIONS = """
    to_language stream_include_usage stream_continuous_usage_stats vllm_xargs top_p top_k min_p seed
    frequency_penalty repetition_penalty presence_penalty max_completion_tokens hotwords
    use_beam_search n length_penalty
"""
TOKENIZE = """
    model prompt messages add_special_tokens return_token_strs add_generation_prompt tools
    continue_final_message chat_template chat_template_kwargs mm_processor_kwargs
"""


def every_name() -> tuple[set[str], set[str]]:
    """The fields of all bodies that either package sends, and the keys of all objects within."""
    of_bodies = set().union(*(documented for _, _, documented in ROUTES.values()))
    within = set()
    for package in (anthropic.types, openai.types):
        for info in walk_packages(package.__path__, f"{package.__name__}."):
            if info.name.endswith(("_param", "_params")):
                for kind in filter(is_typeddict, vars(import_module(info.name)).values()):
                    is_body = re.search(
                        "(?<!Sampling)Params(Base|Streaming|NonStreaming)?$", kind.__name__
                    )
                    (of_bodies if is_body else within).update(kind.__annotations__)
    return of_bodies, within


def names(*kinds: Any, more: str = "") -> set[str]:
    return {name for kind in kinds for name in get_type_hints(kind)} | set(more.split())


ROUTES = {
    "chat": (
        chat.ChatRequest,
        chat.CHAT_FIELDS,
        names(chat_create_params.CompletionCreateParamsStreaming, more=VLLM_SAMPLING + VLLM_CHAT),
    ),
    "completions": (
        completions.CompletionRequest,
        completions.COMPLETION_FIELDS,
        names(
            completion_create_params.CompletionCreateParamsStreaming,
            more=VLLM_SAMPLING + "prompt_embeds suffix best_of",
        ),
    ),
    "responses": (
        responses.ResponseRequest,
        responses.RESPONSE_FIELDS,
        names(response_create_params.ResponseCreateParamsStreaming, more=VLLM_RESPONSES),
    ),
    "messages": (
        messages.MessageRequest,
        messages.MESSAGE_FIELDS,
        names(
            message_create_params.MessageCreateParamsStreaming,
            beta_create_params.MessageCreateParamsStreaming,
            more=OLDER_ANTHROPIC + VLLM_MESSAGES,
        ),
    ),
    "count_tokens": (
        messages.CountRequest,
        messages.COUNT_FIELDS,
        names(
            MessageCountTokensParams, beta_count_params.MessageCountTokensParams, more=VLLM_MESSAGES
        ),
    ),
    "transcriptions": (
        transcriptions.TranscriptionRequest,
        transcriptions.TRANSCRIPTION_FIELDS,
        names(
            transcription_create_params.TranscriptionCreateParamsStreaming, more=VLLM_TRANSCRIPTIONS
        ),
    ),
    "translations": (
        transcriptions.TranslationRequest,
        transcriptions.TRANSLATION_FIELDS,
        names(translation_create_params.TranslationCreateParams, more=VLLM_TRANSLATIONS),
    ),
    "tokenize": (tokenize.TokenizeRequest, tokenize.TOKENIZE_FIELDS, names(more=TOKENIZE)),
    "detokenize": (
        tokenize.DetokenizeRequest,
        tokenize.DETOKENIZE_FIELDS,
        names(more="model tokens"),
    ),
}
