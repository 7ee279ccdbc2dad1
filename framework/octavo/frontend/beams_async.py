"""A beam search among the other requests of an engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Final

from octavo.detokenizing import IncrementalDetokenizer
from octavo.errors import DeadEndError, ParameterError
from octavo.frontend.async_requests import CompilingThreads, Making
from octavo.frontend.beam_search import BeamSearch, Candidates, num_candidates
from octavo.frontend.beam_steps import candidates_of, check_mode, guided_by
from octavo.frontend.frontend import Frontend
from octavo.inputs import PreparedRequest
from octavo.limits import MAX_LOGPROBS
from octavo.outputs import BeamSearchOutput, RequestOutput
from octavo.params import BeamSearchParams, SamplingParams

MAX_IDS_ON_LOOP: Final = 1024
"""Longest prompt that steps are made of without a thread; each looks at all of it."""
Submit = Callable[[Making], AsyncGenerator[RequestOutput, None]]
"""Hands a request to the engine."""


async def search_beams(
    front: Frontend,
    head: PreparedRequest,
    params: BeamSearchParams,
    submit: Submit,
    threads: CompilingThreads,
) -> BeamSearchOutput:
    """Extend the prompt of ``head``; each step of a beam is a request of one token."""
    request, ids = head.request, [*head.request.prompt_token_ids]
    if request.media:
        raise ParameterError("a beam search takes prompts of text", param="use_beam_search")
    check_mode(front.config.model.logprobs_mode)
    ready, eos = front.client.ready, front.eos_token_ids
    count = min(num_candidates(params, len(eos)), MAX_LOGPROBS, ready.vocab_size)
    one_token = SamplingParams(
        max_tokens=1, temperature=0.0, logprobs=count, detokenize=False, ignore_eos=True
    )

    def step(name: str, tokens: list[int]) -> PreparedRequest:
        prompt = {"prompt_token_ids": ids + tokens, "cache_salt": request.cache_salt}
        made = front.inputs.process(name, prompt, one_token, priority=request.priority)
        return guided_by(request.guide, made, len(tokens))

    most = min(params.max_tokens, ready.max_model_len - len(ids))
    is_long = len(ids) > MAX_IDS_ON_LOOP
    search = BeamSearch(params, max_tokens=most, eos_token_ids=eos)
    num_steps = 0
    while search.live:
        names = [f"{request.request_id}-{num_steps}-{n}" for n in range(len(search.live))]
        steps = [
            submit(Making(partial(step, name, beam.token_ids), in_thread=is_long, compiles=False))
            for name, beam in zip(names, search.live, strict=True)
        ]
        search.advance(await _candidates_of_all(steps))
        num_steps += 1
    found = BeamSearchOutput(prompt_token_ids=ids, sequences=search.best)
    if front.tokenizer is not None:
        for beam in found.sequences:
            text = IncrementalDetokenizer(
                front.tokenizer,
                prompt_ids=ids,
                keep_special_tokens=head.params.keep_special_tokens,
            )
            beam.text = text.push(beam.token_ids) + text.finish()
    if head.reader is not None:
        await threads.run(partial(head.reader.take_beams, found.sequences))
    return found


async def _candidates_of_all(
    steps: Sequence[AsyncGenerator[RequestOutput, None]],
) -> list[Candidates | None]:
    tasks = [asyncio.create_task(_candidates(each)) for each in steps]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


async def _candidates(outputs: AsyncGenerator[RequestOutput, None]) -> Candidates | None:
    try:
        async with aclosing(outputs):
            async for output in outputs:
                last = output
    except DeadEndError:
        return None
    return candidates_of(last)
