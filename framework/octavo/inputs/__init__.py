"""Prompts and messages to engine requests: forms, limits, chat templates."""

from octavo.inputs.chat import ChatRenderer
from octavo.inputs.conversation import Conversation, RequestOptions
from octavo.inputs.defaults import default_sampling_params
from octavo.inputs.processor import InputProcessor, PreparedRequest
from octavo.inputs.prompt import Prompt, TextPrompt, TokensPrompt, split_prompts
from octavo.inputs.template import ChatTemplate, load_chat_template
from octavo.vllm_paths import names_of_vllm
from octavo_registry.registering import INPUT_REGISTRY

PromptType = Prompt
__getattr__ = names_of_vllm(__name__)

__all__ = [
    "INPUT_REGISTRY",
    "ChatRenderer",
    "ChatTemplate",
    "Conversation",
    "InputProcessor",
    "PreparedRequest",
    "Prompt",
    "PromptType",
    "RequestOptions",
    "TextPrompt",
    "TokensPrompt",
    "default_sampling_params",
    "load_chat_template",
    "split_prompts",
]
