"""The bodies of /v1/responses, both ways."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec

from octavo.outputs import GuideReceipt
from octavo.params import GuidedParams
from octavo.server.apis.responses.items import KEPT_ADVICE, Item
from octavo.server.http.errors import HttpError
from octavo.server.protocol.fields import FieldTable, Noted, Refused
from octavo.server.protocol.guided import format_guided
from octavo.server.protocol.notes import Notes
from octavo.server.protocol.sampling import NO_BEAMS, NOT_AVAILABLE, NOTED, SamplingFields
from octavo.wording import shown

LOGPROBS: Final = "message.output_text.logprobs"
"""The one value of ``include`` that has an effect."""
MAX_METADATA: Final = (16, 64, 512)
"""Keys, characters of a key and of a value, as OpenAI has it."""
RESPONSE_FIELDS: Final = FieldTable(
    noted={
        **{name: noted for name, noted in NOTED.items() if name not in ("metadata", "store")},
        "client_metadata": Noted(dict[str, Any], ({},)),
        "max_tool_calls": Noted(Annotated[int, msgspec.Meta(ge=1)]),
        "context_management": Noted(list[Any], ([],)),
        "truncation": Noted(str, ("disabled",), "has no effect: a prompt too long is refused"),
    },
    refused={
        **NOT_AVAILABLE,
        **NO_BEAMS,
        "max_tokens": Refused("it is max_output_tokens here"),
        "max_completion_tokens": Refused("it is max_output_tokens here"),
        "background_options": Refused("leave it out: background alone works"),
        "conversation": Refused(KEPT_ADVICE),
        "prompt": Refused("this server keeps no prompts; send input and instructions"),
        "previous_input_messages": Refused("give previous_response_id, or all items as input"),
        "previous_response": Refused("give previous_response_id"),
        "enable_response_messages": Refused("return_token_ids of other routes", (False,)),
        "moderation": Refused("no moderation is part of this server"),
        "access_programs": Refused("there are none here"),
        "image": Refused("an image is a part of an item: input_image"),
        "n": Refused("/v1/chat/completions has it", (1,)),
    },
)
"""Fields of a request besides those of ``ResponseRequest``."""


class ResponseStreamOptions(msgspec.Struct):
    """Options of a stream of events."""

    include_obfuscation: bool | None = None
    """No effect: nothing is padded."""


class Reasoning(msgspec.Struct):
    """How much to think before the answer; all but the effort is noted."""

    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None
    context: Any = None
    mode: Any = None


class ShownReasoning(msgspec.Struct):
    """What an answer tells of it; keys that OpenAI's leave out may not be null in its types."""

    effort: str | None
    summary: str | None


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


class TextConfig(msgspec.Struct):
    """What form the text has."""

    format: TextFormat | None = msgspec.field(default_factory=TextFormat)
    verbosity: str | None = None
    """Noted: say in the instructions how long the answer should be."""


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
    mm_processor_kwargs: dict[str, Any] | None = None
    media_io_kwargs: dict[str, Any] | None = None


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
    reasoning: ShownReasoning
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


def note_hints(request: ResponseRequest, notes: Notes) -> None:
    """Note what of the objects within has no effect."""
    for key in ("summary", "generate_summary", "context", "mode"):
        if getattr(request.reasoning, key) is not None:
            notes.add(f"reasoning.{key}")
    if request.text.verbosity not in (None, "medium"):
        notes.add("text.verbosity")
    for name in request.include:
        if name != LOGPROBS:
            notes.add("include", f"asks for {shown(name)}, which is not part of any answer here")


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
