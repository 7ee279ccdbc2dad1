"""What ``LLM`` and ``AsyncLLM`` are made of, on this side of the engine and up to its client."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from typing import Final

from octavo.config import EngineConfig
from octavo.config.engine import ModelConfig
from octavo.config.media import MediaConfig
from octavo.detokenizing.processor import OutputProcessor
from octavo.engine.client import EngineClient, InProcessClient
from octavo.engine.process_client import ProcessClient
from octavo.errors import BadRequestError, ConfigError, PromptError, UnsupportedConstraint
from octavo.frontend.options import read_options
from octavo.guided.checking import GuideChecker
from octavo.guided.choose import remembering_choice
from octavo.guided.vocabulary import vocabulary_of
from octavo.inputs import (
    ChatRenderer,
    ChatTemplate,
    Conversation,
    InputProcessor,
    PreparedRequest,
    RequestOptions,
    default_sampling_params,
    load_chat_template,
)
from octavo.inputs.chat import check_shows_messages
from octavo.inputs.extra_args import ExtraArgsCheck
from octavo.inputs.media import MediaInputs, read_settings
from octavo.inputs.media_parts import has_media, take_media
from octavo.inputs.processor_kwargs import asked_of_all, read_kwargs
from octavo.model_folder import ModelFolder, open_model
from octavo.model_folder.tokenizer import eos_token_ids, load_tokenizer
from octavo.model_folder.tokenizer_failures import failure_of
from octavo.multimodal.given import GivenMedia
from octavo.observability.function_trace import trace_functions
from octavo.observability.logs import warn_of_vllm_variables
from octavo.params import GuidedParams, SamplingParams
from octavo.tools.answer_format import AnswerFormat, make_answer_format
from octavo.tools.answer_reader import AnswerReader
from octavo.wording import shown
from octavo_registry import PluginHost
from octavo_registry.faults import FAILURES
from octavo_registry.manifest import PluginRecord
from octavo_registry.tokenizer import Tokenizer

GUIDE_FIELDS: Final = ("guided", *(field.name for field in fields(GuidedParams)))
"""What errors about a constraint blame; for one that was made here, the tools are to blame."""

StartEngineClient = Callable[[EngineConfig, PluginHost], EngineClient]


@dataclass(frozen=True, kw_only=True)
class Frontend:
    """One engine's client and everything between it and the caller."""

    config: EngineConfig
    host: PluginHost
    folder: ModelFolder
    tokenizer: Tokenizer | None
    eos_token_ids: tuple[int, ...]
    chat: ChatRenderer
    answers: AnswerFormat
    inputs: InputProcessor
    outputs: OutputProcessor
    client: EngineClient
    guides: GuideChecker | None
    """Checks constraints in a process that may be killed; None: they are the caller's own."""
    start_engine: StartEngineClient

    def with_new_engine(self) -> Frontend:
        """Start another engine in the place of one that has ended."""
        outputs = _outputs(self.config, self.tokenizer, self.host)
        outputs.observer = self.outputs.observer
        client = self.start_engine(as_found(self.config, self.folder), self.host)
        return replace(self, client=client, outputs=outputs)

    @cached_property
    def runs_foreign_code(self) -> bool:
        """Whether plugins of others take part in making requests, which may take any time."""
        host, architecture = self.host, self.folder.architecture
        used = [host.tokenizers.info(self.config.model.tokenizer_mode).plugin]
        for registry in (host.inputs, host.multimodal):
            if architecture in registry:
                used.append(registry.info(architecture).plugin)
        return bool(self.answers.foreign) or any(map(host.is_foreign, used))

    def close(self) -> None:
        """End the processes beside the engine's; calling it again does nothing."""
        if self.guides is not None:
            self.guides.close()
        self.chat.close()
        self.host.settle_events()

    def check_writes(self) -> None:
        """Refuse a model that reads texts and writes none."""
        if self.folder.pooling is not None:
            raise ConfigError(
                f"{self.folder.architecture} embeds texts and writes none; use embed or encode"
            )

    def prepare_chat(
        self,
        conversation: Conversation,
        params: SamplingParams | None,
        options: RequestOptions,
    ) -> PreparedRequest:
        """Check a conversation and put it into ids."""
        use = conversation.tool_use()
        messages = conversation.messages
        media: Sequence[GivenMedia] = ()
        modalities = self.folder.capabilities.modalities
        if has_media(messages, modalities):
            takes_embeds = self.config.media.enable_mm_embeds
            messages, media = take_media(messages, modalities, takes_embeds=takes_embeds)
        tools = use.tools if use else None
        chat = self.chat.render(replace(conversation, messages=messages, tools=tools))
        params = self.inputs.params_or_default(params)
        try:
            expected = self.answers.expect(chat.shown, use, params.guided)
            prepared = self.inputs.process(
                options.request_id,
                chat.text,
                replace(
                    params,
                    guided=expected.guided,
                    keep_special_tokens=(*params.keep_special_tokens, *expected.markers),
                ),
                priority=options.priority,
                cache_salt=options.cache_salt,
                adapter=options.adapter,
                add_special_tokens=False,
                media=media,
                processor_kwargs=conversation.mm_processor_kwargs,
                chat=chat,
            )
        except BadRequestError as error:
            if use is None or params.guided is not None or error.param not in GUIDE_FIELDS:
                raise
            raise type(error)(f"tools: {error}", param="tools") from error
        except RecursionError as error:
            if use is None:
                raise
            raise UnsupportedConstraint(
                "tools: their parameters are too many or too deep for a guide", param="tools"
            ) from error
        if expected.new_stream is None or not params.detokenize:
            return prepared
        in_pieces = params.output_kind == "delta"
        reader = AnswerReader(expected, in_pieces=in_pieces, foreign=self.answers.foreign)
        return replace(prepared, reader=reader)

    def chat_ids(self, conversation: Conversation) -> list[int]:
        """Return the token ids of a conversation, in which media have all tokens that they take."""
        use = conversation.tool_use()
        shown = replace(
            conversation,
            tools=use.tools if use else None,
            tool_choice=None,
            parallel_tool_calls=None,
        )
        if not has_media(shown.messages, self.folder.capabilities.modalities):
            return self.inputs.encode_chat(self.chat.render(shown))
        one, options = SamplingParams(max_tokens=1), RequestOptions(request_id="tokenize")
        return [*self.prepare_chat(shown, one, options).request.prompt_token_ids]


def start_frontend(
    options: Mapping[str, object], *, engine_process: bool | None, caller: str
) -> Frontend:
    """Read the options, open the model and start its engine; the cheap checks come first."""
    config, host = read_and_discover(options, caller=caller)
    folder = open_checked(config, host, caller=caller)
    is_apart = has_own_process(
        engine_process,
        modalities=[m for m in folder.capabilities.modalities if config.media.max_items(m)],
        plugins=host.plugins,
        find_device=lambda: _find_device(config.model.device),
    )
    return make_frontend(config, host, folder, _start_process if is_apart else start_in_process)


def has_own_process(
    given: bool | None,
    *,
    modalities: Iterable[str],
    plugins: Iterable[PluginRecord],
    find_device: Callable[[], str],
) -> bool:
    """Whether the engine has a process of its own: as ``given``; None leaves it to the rest.

    It has one where prompts may have media, the model runs on CUDA, and another process can import
    all plugins. ``find_device`` is asked last, because it imports torch.
    """
    if given is not None:
        return given
    # Threads that read media and an engine's steps wait for one interpreter's lock: of requests
    # with an image of 1024 x 1024 each, one process did 15.9 a second and two did 17.6.
    if not any(modalities) or any(each.module in (None, "__main__") for each in plugins):
        return False
    return find_device() == "cuda"


def read_and_discover(
    options: Mapping[str, object], *, caller: str
) -> tuple[EngineConfig, PluginHost]:
    """Read the options and load the plugins that they name."""
    trace_functions()
    warn_of_vllm_variables()
    given = read_options(options, caller=caller)
    host = PluginHost.discover(
        plugins=given.plugins,
        disabled=given.disable_plugins,
        options=given.config.plugin_options,
    )
    return given.config, host


def open_checked(config: EngineConfig, host: PluginHost, *, caller: str) -> ModelFolder:
    """Open the model; check that the caller can use it, and what options say of its media."""
    for modality in config.media.limit_mm_per_prompt:
        if modality not in host.modalities:
            raise ConfigError(
                f"limit_mm_per_prompt has {shown(modality)}, which no plugin decodes; known: "
                f"{', '.join(host.modalities.names())}"
            )
    folder = open_model(config.model, host)
    if folder.pooling is not None and caller != "LLM":
        raise ConfigError(
            f"{folder.architecture} embeds texts, which {caller} does not yet; LLM does"
        )
    if folder.pooling is None and folder.task not in ("generate", "transcribe"):
        raise ConfigError(f"task={folder.task!r} is not available yet; there are: embed, generate")
    known = host.multimodal.kwargs(folder.architecture, folder.config)
    try:
        read_kwargs(asked_of_all(config.media), known)
    except PromptError as error:
        raise ConfigError(str(error)) from error
    return folder


def make_frontend(
    config: EngineConfig,
    host: PluginHost,
    folder: ModelFolder,
    start_engine: StartEngineClient,
    *,
    sequence_ids: Iterator[int] | None = None,
) -> Frontend:
    """Start the model's engine, or reach one that another process has started.

    ``sequence_ids`` are for its requests, where the engine has other clients besides.
    """
    tokenizer = load_tokenizer(config.model, folder, host)
    eos = eos_token_ids(folder, tokenizer)
    default_params = default_sampling_params(
        folder.generation_config, config.model.override_generation_config
    )
    media = _media_inputs(config.media, folder, tokenizer, host)
    chat = ChatRenderer(
        tokenizer,
        chat_template=_chat_template(config.model, folder, tokenizer, host),
        capabilities=folder.capabilities,
        media_texts=_media_texts(folder, host),
        media_marks=media.marks,
        trust_message_tokens=config.model.trust_message_tokens,
        default_kwargs=config.model.default_chat_template_kwargs,
    )
    template = chat.tool_template
    answers = make_answer_format(config.model, folder, tokenizer, host, chat_template=template)
    client = start_engine(as_found(config, folder), host)
    guides: GuideChecker | None = None
    if start_engine is not start_in_process and tokenizer is not None:
        vocabulary = partial(
            vocabulary_of,
            tokenizer,
            vocab_size=client.ready.vocab_size,
            stop_token_ids=eos,
        )
        guides = GuideChecker(host.manifest(), vocabulary, on_device=client.ready.masks_on_device)
    return Frontend(
        config=config,
        host=host,
        folder=folder,
        tokenizer=tokenizer,
        eos_token_ids=eos,
        chat=chat,
        answers=answers,
        inputs=InputProcessor(
            tokenizer,
            max_model_len=client.ready.max_model_len,
            vocab_size=client.ready.vocab_size,
            eos_token_ids=eos,
            default_params=default_params,
            max_logprobs=config.model.max_logprobs,
            capabilities=folder.capabilities,
            seed=config.model.seed,
            takes_priority=config.scheduler.scheduling_policy == "priority",
            sequence_ids=sequence_ids,
            media=media,
            tokenizer_failed=failure_of(host, config.model.tokenizer_mode),
            check_extra_args=ExtraArgsCheck(host, config.logits_processors),
            choose_guide=remembering_choice(host, on_device=client.ready.masks_on_device)
            if guides is None
            else guides.check,
        ),
        outputs=_outputs(config, tokenizer, host),
        client=client,
        guides=guides,
        start_engine=start_engine,
    )


def _media_inputs(
    config: MediaConfig, folder: ModelFolder, tokenizer: Tokenizer | None, host: PluginHost
) -> MediaInputs:
    modalities = folder.capabilities.modalities
    settings = read_settings(folder.path, folder.config, tokenizer, modalities=modalities)
    inputs = MediaInputs(folder.architecture, settings, host, config)
    if modalities:
        inputs.reader.load(modalities)
    return inputs


def _media_texts(folder: ModelFolder, host: PluginHost) -> dict[str, str]:
    if folder.architecture not in host.inputs:
        return {}
    texts: dict[str, str] = host.inputs.info(folder.architecture).metadata["texts"]
    return texts


def _outputs(
    config: EngineConfig, tokenizer: Tokenizer | None, host: PluginHost
) -> OutputProcessor:
    failed = failure_of(host, config.model.tokenizer_mode)
    try:
        return OutputProcessor(
            tokenizer,
            tokenizer_failed=failed,
            on_finished=lambda outcome: host.notify("request_finished", outcome=outcome),
        )
    except FAILURES as error:  # it asks the tokenizer what it is like
        raise failed("decode", error) from error


def _chat_template(
    config: ModelConfig, folder: ModelFolder, tokenizer: Tokenizer | None, host: PluginHost
) -> str | None:
    """The user's; None leaves the tokenizer's own, and a model without one asks the plugins."""
    if config.chat_template is not None:
        source = load_chat_template(config.chat_template)
        try:
            check_shows_messages(
                ChatTemplate(source, tokenizer.special_tokens if tokenizer else {})
            )
        except PromptError as error:
            raise ConfigError(str(error)) from error
        return source
    if tokenizer is not None and tokenizer.chat_template is not None:
        return None
    template: str | None = host.hook.select_chat_template(
        architecture=folder.architecture, config=folder.config
    )
    return template


def as_found(config: EngineConfig, folder: ModelFolder) -> EngineConfig:
    """Name the folder itself: asked again, a source on the network may answer otherwise.

    A tokenizer elsewhere keeps its name and revision.
    """
    given = config.model
    found = replace(given, model=str(folder.path), revision=None)
    if given.tokenizer is not None or given.tokenizer_revision is not None:
        revision = given.tokenizer_revision or given.revision
        found = replace(
            found, tokenizer=given.tokenizer or given.model, tokenizer_revision=revision
        )
    return replace(config, model=found)


def _find_device(name: str) -> str:
    from octavo.execution.worker import choose_device  # imports torch, as below

    return choose_device(name).type


def _start_process(config: EngineConfig, host: PluginHost) -> EngineClient:
    return ProcessClient(config, host.manifest())


def start_in_process(config: EngineConfig, host: PluginHost) -> EngineClient:
    """Start an engine that runs here."""
    from octavo.engine.core import EngineCore  # imports torch, which a front end can do without

    return InProcessClient(EngineCore(config, host))
