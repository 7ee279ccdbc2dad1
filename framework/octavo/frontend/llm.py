"""Offline batches: all requests in, wait, all outputs back."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self, cast

from octavo.adapters.loaded import LoadedAdapters
from octavo.detokenizing import IncrementalDetokenizer
from octavo.errors import ConfigError, EngineDeadError, ParameterError
from octavo.frontend.beam_search import (
    BeamSearch,
    Candidates,
    Continued,
    num_candidates,
    run_beam_searches,
)
from octavo.frontend.beam_steps import candidates_of, check_mode, guided_by
from octavo.frontend.embedding import EmbedsTexts
from octavo.frontend.frontend import start_frontend
from octavo.frontend.interrupts import InterruptsBetweenSteps
from octavo.frontend.open_requests import OpenRequests, read_answers
from octavo.frontend.per_prompt import (
    adapters_of_each,
    ids_of_each,
    params_of_each,
    priorities_of_each,
)
from octavo.frontend.preparing import Making, Preparing
from octavo.frontend.progress import ProgressBar
from octavo.inputs import Conversation, Prompt, RequestOptions, split_prompts
from octavo.inputs.messages import Message
from octavo.limits import MAX_LOGPROBS
from octavo.messages import EngineReady
from octavo.model_folder.tokenizer import underlying
from octavo.outputs import BeamSearchOutput, RequestOutput
from octavo.params import BeamSearchParams, LoRARequest, SamplingParams
from octavo.wording import shown

if TYPE_CHECKING:
    from octavo.frontend.engine_keywords import EngineKeywords

POLL_SECONDS: Final = 1.0


class LLM(EmbedsTexts):
    """A model and its engine. Calls of several threads wait for one another.

    Options are the fields of ``octavo.config``'s dataclasses by name, and ``plugins`` and
    ``disable_plugins``. ``engine_process`` says whether the engine has a process of its own; None:
    where prompts may have media and the model runs on CUDA, unless a plugin is an object.
    """

    def __init__(
        self, model: str | os.PathLike[str], *, engine_process: bool | None = None, **options: Any
    ) -> None:
        self._front = start_frontend(
            {"model": model, **options}, engine_process=engine_process, caller="LLM"
        )
        self._adapters = LoadedAdapters(
            self._front.config,
            self._front.client.ready.adapters,
            self._front.host,
            self._front.client,
        )
        self._open = OpenRequests(self._front.client, self._front.outputs)
        self._request_ids = itertools.count()
        self._lock = threading.RLock()  # so that a signal's handler may close
        self._closed = False
        self._pid = os.getpid()

    @classmethod
    def from_engine_args(cls, engine_args: EngineKeywords) -> Self:
        """Return one of options that were collected before."""
        return cls(**engine_args.options())

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
        priority: Sequence[int] | None = None,
        add_special_tokens: bool = True,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Continue each prompt; the outputs are in the prompts' order.

        All prompts are checked before any is queued; those of a model that sees or hears while
        others run, and one that is wrong ends the call. A request that fails inside the engine has
        ``error`` set and the finish reason "error"; the others are not touched.
        """
        self._check_open()
        split = split_prompts(prompts)
        priorities = priorities_of_each(priority, len(split))
        all_params = params_of_each(sampling_params, len(split))
        with self._leased(lora_request, len(split)) as adapters:
            calls = [
                self._preparing(*one, add_special_tokens=add_special_tokens)
                for one in zip(split, all_params, priorities, adapters, strict=True)
            ]
            with self._prepare(calls) as requests:
                return self._run(requests, use_tqdm=use_tqdm)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        request_id: str | Sequence[str] | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: str | Mapping[str, Any] | None = None,
        parallel_tool_calls: bool | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        chat_template: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        mm_processor_kwargs: Mapping[str, Any] | None = None,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
        priority: Sequence[int] | None = None,
        cache_salt: str = "",
        strict: bool = False,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Answer one conversation, or each of many.

        ``request_id``, of many a list, is in the outputs; None numbers them. ``chat_template`` is
        Jinja source or the name of one of the model's templates; for a file use
        ``octavo.inputs.load_chat_template``. ``add_generation_prompt`` None means True, unless
        the final message is continued. ``tools`` and ``tool_choice`` are OpenAI's; ``message`` of
        an output holds the calls and the reasoning, where the model has parsers for them.
        ``documents`` are for templates that take them; ``cache_salt`` keeps the cached prefixes of
        one caller from others; ``strict`` raises for what the template would drop without a word.
        """
        self._check_open()
        many = isinstance(messages, (list, tuple)) and bool(messages)
        chats = messages if many and not isinstance(messages[0], Mapping) else [messages]
        all_params = params_of_each(sampling_params, len(chats))
        priorities = priorities_of_each(priority, len(chats))
        names = ids_of_each(request_id, len(chats), self._request_ids)
        with self._leased(lora_request, len(chats)) as adapters:
            calls = [
                partial(
                    self._front.prepare_chat,
                    Conversation(
                        messages=cast("Sequence[Message]", chat),
                        tools=tools,
                        tool_choice=tool_choice,
                        parallel_tool_calls=parallel_tool_calls,
                        documents=documents,
                        chat_template=chat_template,
                        chat_template_kwargs=chat_template_kwargs,
                        add_generation_prompt=add_generation_prompt,
                        continue_final_message=continue_final_message,
                        mm_processor_kwargs=mm_processor_kwargs,
                        strict=strict,
                    ),
                    self._final(params),
                    RequestOptions(
                        request_id=name, priority=number, cache_salt=cache_salt, adapter=adapter
                    ),
                )
                for chat, params, name, adapter, number in zip(
                    chats, all_params, names, adapters, priorities, strict=True
                )
            ]
            with self._prepare(calls) as requests:
                outputs = self._run(requests, use_tqdm=use_tqdm)
        for request, output in zip(requests.made, outputs, strict=True):
            read_answers(request, output)
        return outputs

    def beam_search(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: BeamSearchParams,
        *,
        lora_request: LoRARequest | None = None,
    ) -> list[BeamSearchOutput]:
        """Find the ``beam_width`` best continuations of each prompt, best first.

        A beam ends at the end of sequence, at ``max_tokens`` or at the model's context length, and
        where a constraint admits nothing more; one that no token continues sooner is dropped. There
        may be fewer beams than texts that the constraint admits.
        """
        self._check_open()
        if not isinstance(params, BeamSearchParams):
            raise ParameterError(f"params={shown(params)} must be BeamSearchParams")
        check_mode(self._front.config.model.logprobs_mode)
        with self._leased(lora_request, 1) as (adapter,):
            return self._beam_search(prompts, params, adapter)

    def _beam_search(
        self, prompts: Prompt | Sequence[Prompt], params: BeamSearchParams, adapter: str
    ) -> list[BeamSearchOutput]:
        ready, eos = self._front.client.ready, self._front.eos_token_ids
        first = [
            self._preparing(prompt, SamplingParams(max_tokens=1, guided=params.guided))().request
            for prompt in split_prompts(prompts)
        ]
        if any(request.media for request in first):
            raise ParameterError("a beam search takes prompts of text; use generate for media")
        heads = [request.prompt_token_ids for request in first]
        count = min(num_candidates(params, len(eos)), MAX_LOGPROBS, ready.vocab_size)
        one_token = SamplingParams(
            max_tokens=1, temperature=0.0, logprobs=count, detokenize=False, ignore_eos=True
        )

        def expand(sequences: list[Continued]) -> list[Candidates | None]:
            calls = [
                partial(
                    guided_by,
                    first[0].guide,
                    self._preparing(prompt + tokens, one_token, adapter=adapter)(),
                    len(tokens),
                )
                for prompt, tokens in sequences
            ]
            with Preparing(calls, num_threads=0) as requests:
                return [candidates_of(output) for output in self._run(requests, use_tqdm=False)]

        searches = [
            BeamSearch(
                params,
                max_tokens=min(params.max_tokens, ready.max_model_len - len(head)),
                eos_token_ids=eos,
            )
            for head in heads
        ]
        run_beam_searches(heads, searches, expand)
        outputs = [
            BeamSearchOutput(prompt_token_ids=head, sequences=search.best)
            for head, search in zip(heads, searches, strict=True)
        ]
        if self._front.tokenizer is not None:
            for output in outputs:
                for beam in output.sequences:
                    text = IncrementalDetokenizer(
                        self._front.tokenizer, prompt_ids=output.prompt_token_ids
                    )
                    beam.text = text.push(beam.token_ids) + text.finish()
        return outputs

    def get_tokenizer(self) -> Any:
        """Return the Transformers tokenizer (or what the tokenizer plugin has in its place)."""
        self._check_open()
        if self._front.tokenizer is None:
            raise ConfigError("there is no tokenizer, because skip_tokenizer_init is set")
        return underlying(self._front.tokenizer)

    @property
    def ready(self) -> EngineReady:
        """What the engine has said of itself: the sizes of its cache, steps and vocabulary."""
        self._check_open()
        return self._front.client.ready

    def get_default_sampling_params(self) -> SamplingParams:
        """Return what ``generate`` uses without parameters: the model's own recommendation."""
        self._check_open()
        return self._front.inputs.default_params

    def unload_adapter(self, name: str) -> None:
        """Forget an adapter that a request has named before."""
        self._check_open()
        with self._lock:
            self._adapters.unload(name)

    def reset_prefix_cache(self) -> bool:
        """Forget cached prefixes that no request holds; returns whether all are forgotten."""
        self._check_open()
        with self._lock:
            return bool(self._front.client.call("reset_prefix_cache"))

    def close(self) -> None:
        """End the engine and free its memory; calling it again does nothing.

        A call under way in another thread ends with an EngineDeadError.
        """
        if not self._closed:
            self._closed = True
            self._front.client.wake()
            with self._lock:
                self._front.client.close()
            self._front.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _preparing(
        self,
        prompt: Prompt,
        params: SamplingParams | None,
        priority: int = 0,
        adapter: str = "",
        *,
        add_special_tokens: bool = True,
    ) -> Making:
        return partial(
            self._front.inputs.process,
            str(next(self._request_ids)),
            prompt,
            self._final(params),
            priority=priority,
            adapter=adapter,
            add_special_tokens=add_special_tokens,
        )

    def _prepare(self, calls: Sequence[Making]) -> Preparing:
        """In threads where prompts may have media, which are decoded and resized there."""
        in_threads = len(calls) > 1 and self._front.folder.capabilities.modalities
        return Preparing(calls, self._front.config.media.num_threads if in_threads else 0)

    @contextmanager
    def _leased(
        self, given: LoRARequest | Sequence[LoRARequest | None] | None, count: int
    ) -> Iterator[list[str]]:
        """The content hashes of the adapters, one for each prompt; "" for none."""
        self._front.check_writes()
        each = adapters_of_each(given, count)
        self._adapters.check_room({request.name for request in each if request})
        with ExitStack() as stack:
            if any(each):
                stack.enter_context(self._lock)  # the client is one thread's at a time
            yield [stack.enter_context(self._adapters.leased(request)) for request in each]

    def _final(self, params: SamplingParams | None) -> SamplingParams:
        inputs = self._front.inputs
        return replace(inputs.seeded(inputs.params_or_default(params)), output_kind="final")

    def _run(self, requests: Preparing, *, use_tqdm: bool) -> list[RequestOutput]:
        """Queue the requests and step until each has ended; on any exception none is left."""
        client = self._front.client
        ended: dict[str, RequestOutput] = {}
        ids: list[str] = []
        with (
            self._lock,
            ProgressBar(requests.count, shown=use_tqdm) as bar,
            InterruptsBetweenSteps() as interrupts,
        ):
            try:
                requests.tell(client.wake)  # not to wait for a step before the next is queued
                while len(ended) < requests.count:
                    interrupts.check()
                    self._check_open()
                    new = requests.take(POLL_SECONDS if len(ended) == len(ids) else 0.0)
                    ids += [entry.request.request_id for entry in new]
                    self._open.add(new)
                    if len(ended) == len(ids):
                        continue
                    step = client.poll(POLL_SECONDS)
                    if step is None:
                        continue
                    outputs = self._open.take(step)
                    ended.update((output.request_id, output) for output in outputs)
                    bar.advance(num_requests=len(outputs), num_tokens=len(step.tokens))
            except BaseException:
                self._open.abort(ids)
                raise
        return [ended[request_id] for request_id in ids]

    def _check_open(self) -> None:
        if self._closed:
            raise EngineDeadError("this LLM was closed; make a new one")
        if os.getpid() != self._pid:  # an engine's threads and sockets do not survive a fork
            raise EngineDeadError("this LLM belongs to the parent process; make one after the fork")
