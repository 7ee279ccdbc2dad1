"""The bodies of /v1/responses, both ways."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec

from octavo.outputs import GuideReceipt
from octavo.params import GuidedParams, shown
from octavo.server.errors import HttpError
from octavo.server.protocol.fields import FieldTable, Refused
from octavo.server.protocol.guided import format_guided
from octavo.server.protocol.response_items import KEPT_ADVICE, Item
from octavo.server.protocol.sampling import NO_EFFECT, NOT_AVAILABLE, SamplingFields

LOGPROBS: Final = "message.output_text.logprobs"
"""The one value of ``include`` that has an effect."""
NOT_INCLUDED: Final = frozenset(
    ("reasoning.encrypted_content", "file_search_call.results", "web_search_call.results",
     "web_search_call.action.sources", "message.input_image.image_url",
     "computer_call_output.output.image_url", "code_interpreter_call.outputs")
)  # fmt: skip
"""Values of ``include`` that ask for more than there is here, which is told."""
MAX_METADATA: Final = (16, 64, 512)
"""Keys, characters of a key and of a value, as OpenAI has it."""
RESPONSE_FIELDS: Final = FieldTable(
    no_effect={
        **{name: kind for name, kind in NO_EFFECT.items() if name not in ("metadata", "store")},
        "client_metadata": dict[str, Any],
        "max_tool_calls": Annotated[int, msgspec.Meta(ge=1)],
    },
    refused={
        **NOT_AVAILABLE,
        "background_options": Refused("leave it out: background alone works"),
        "conversation": Refused(KEPT_ADVICE),
        "prompt": Refused("this server keeps no prompts; send input and instructions"),
        "previous_input_messages": Refused("give previous_response_id, or all items as input"),
        "previous_response": Refused("give previous_response_id"),
        "enable_response_messages": Refused("return_token_ids of other routes", (False,)),
        "context_management": Refused("shorten the input where it is made"),
        "truncation": Refused("shorten the input where it is made", ("disabled",)),
        "moderation": Refused("no moderation is part of this server"),
        "access_programs": Refused("there are none here"),
        "image": Refused("this route takes text"),
        "mm_processor_kwargs": Refused("/v1/chat/completions has it"),
        "media_io_kwargs": Refused("this route takes text"),
        "n": Refused("/v1/chat/completions has it", (1,)),
    },
)
"""Fields of a request besides those of ``ResponseRequest``."""


class ResponseStreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    """Of a stream of events."""

    include_obfuscation: bool | None = None
    """No effect: nothing is padded."""


Summary = Literal["auto", "concise", "detailed"]


class Reasoning(msgspec.Struct, forbid_unknown_fields=True):
    """How much to think before the answer."""

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    summary: Summary | None = None
    """No effect: thoughts are given whole."""
    generate_summary: Summary | None = None
    """The older name of it."""
    context: None = None
    mode: None = None


class TextFormat(msgspec.Struct, forbid_unknown_fields=True):
    """Plain text, or JSON of a schema."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str | msgspec.UnsetType = msgspec.UNSET
    schema: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET
    strict: bool | msgspec.UnsetType | None = msgspec.UNSET
    description: str | msgspec.UnsetType | None = msgspec.UNSET

    def guided(self) -> GuidedParams | None:
        """The constraint that it asks for."""
        for name in ("name", "schema", "strict", "description"):
            value = getattr(self, name)
            if self.type != "json_schema" and value not in (msgspec.UNSET, None):
                raise HttpError(
                    400, f"text: a format of the type {self.type} has no {name}", param="text"
                )
        if self.type == "json_schema" and self.name is msgspec.UNSET:
            raise HttpError(400, "text: format.name is missing", param="text")
        return format_guided("text", self.type, self.schema)


class TextConfig(msgspec.Struct, forbid_unknown_fields=True):
    """What form the text has."""

    format: TextFormat | None = msgspec.field(default_factory=TextFormat)
    verbosity: Literal["low", "medium", "high"] | None = None
    """No effect: say in the instructions how long the answer should be."""


class ResponseRequest(SamplingFields, kw_only=True):
    """A text or a conversation to answer."""

    input: str | list[dict[str, Any]]
    instructions: str | None = None
    previous_response_id: str | None = None
    """The answer after which the conversation goes on; its instructions do not."""
    store: bool = True
    background: bool = False
    """Answer at once, and go on with the answer as long as it takes."""
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    max_output_tokens: int | None = None
    metadata: dict[str, str] = msgspec.field(default_factory=dict)
    include: list[str] = msgspec.field(default_factory=list)
    top_logprobs: int = 0
    text: TextConfig = msgspec.field(default_factory=TextConfig)
    reasoning: Reasoning = msgspec.field(default_factory=Reasoning)
    chat_template_kwargs: dict[str, Any] = msgspec.field(default_factory=dict)


class InputTokensDetails(msgspec.Struct):
    """What is known of the input's tokens."""

    cached_tokens: int
    cache_write_tokens: int = 0


class OutputTokensDetails(msgspec.Struct):
    """What is known of the output's tokens."""

    reasoning_tokens: int = 0


class ResponseUsage(msgspec.Struct, kw_only=True):
    """What an answer has cost."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails = msgspec.field(default_factory=OutputTokensDetails)
    total_tokens: int


class Response(msgspec.Struct, kw_only=True):
    """The answer, as far as it has come."""

    id: str
    object: str = "response"
    created_at: int
    status: str
    model: str
    output: list[Item]
    error: dict[str, str] | None = None
    incomplete_details: dict[str, str] | None = None
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    temperature: float
    top_p: float
    top_logprobs: int
    text: TextConfig
    reasoning: Reasoning
    usage: ResponseUsage | None = None
    store: bool
    background: bool
    parallel_tool_calls: bool = True
    previous_response_id: str | None
    service_tier: str = "default"
    tool_choice: str | dict[str, Any] = "auto"
    tools: list[Any] = []
    truncation: str = "disabled"
    guided: GuideReceipt | msgspec.UnsetType = msgspec.UNSET
    warnings: list[str] | msgspec.UnsetType = msgspec.UNSET


def request_notes(request: ResponseRequest) -> list[str]:
    """Hints of a request that have no effect, for the answer's warnings."""
    hints = {
        "reasoning.summary": request.reasoning.summary,
        "reasoning.generate_summary": request.reasoning.generate_summary,
        "text.verbosity": request.text.verbosity,
    }
    notes = [f"{name} has no effect" for name, value in hints.items() if value is not None]
    asked = [name for name in request.include if name in NOT_INCLUDED]
    return notes + [f"include: {name} is not part of any answer here" for name in asked]


def check_metadata(metadata: dict[str, str]) -> None:
    """Raise for more than OpenAI keeps."""
    most_keys, most_key_chars, most_chars = MAX_METADATA
    if len(metadata) > most_keys:
        raise HttpError(400, f"{len(metadata)} keys of metadata; at most 16", param="metadata")
    for key, value in metadata.items():
        if len(key) > most_key_chars or len(value) > most_chars:
            raise HttpError(
                400, f"metadata {shown(key)}: at most 64 characters in a key, 512 in a value",
                param="metadata",
            )  # fmt: skip
