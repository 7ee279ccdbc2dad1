"""An executor against the one of a single device: the same steps must give the same tokens."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from octavo.engine.core import DEFAULT_EXECUTOR, EngineCore
from octavo.errors import ConfigError, UnsupportedConstraint
from octavo.guided.choose import remembering_choice
from octavo.messages import EngineRequest, GuideRequest, TokenSampling
from octavo.model_folder import open_model
from octavo.model_folder.tokenizer import load_tokenizer
from octavo.params import GuidedParams
from octavo.testing.calm import calm
from octavo.testing.engine_run import MAX_IDLE_STEPS
from octavo.testing.modes import MODES, Trial, engine_config, make_prompts
from octavo.testing.random_model import make_random_model
from octavo.testing.reference import EngineReference
from octavo.testing.report import Check, tried, unclaimed
from octavo_registry import PluginHost
from octavo_registry.faults import FAILURES, one_line

WAYS: Final = (
    "in a batch",
    "with three steps under way",
    "in chunks of 7 tokens",
    "preempted and swapped",
    "forked",
)
REGEX: Final = "[a-e]{6}"


def check_executor(host: PluginHost, name: str) -> list[Check]:
    """Run a small random Llama with it, and guided text."""
    title = f"executor {name!r}"
    with TemporaryDirectory(prefix="octavo-kit-") as at, calm():
        folder = Path(at)
        make_random_model(folder, vocab_size=320, max_position_embeddings=128)
        config = engine_config(folder, executor=name)
        try:
            EngineCore(config, host).close()
        except ConfigError as error:
            reason = f"it does not start for one device: {one_line(error)}"
            return [unclaimed(f"{title} runs steps", reason)]
        except FAILURES as error:
            return [Check(name=f"{title} starts", passed=False, detail=one_line(error))]
        local = engine_config(folder, executor=DEFAULT_EXECUTOR, enable_prefix_caching=False)
        trial = Trial(
            folder=folder,
            host=host,
            reference=EngineReference(local, host),
            prompts=make_prompts(320)[1::3],
            options={"executor": name},
        )
        equal = f"equal tokens of {DEFAULT_EXECUTOR!r}"
        checks = [tried(f"{title}: {equal} {way}", _problems(trial, MODES[way])) for way in WAYS]
        guided = f"{title} samples guided tokens by their masks"
        try:
            guide = remembering_choice(host)(GuidedParams(regex=REGEX))
        except UnsupportedConstraint as error:
            checks.append(unclaimed(guided, str(error)))
        else:
            checks.append(tried(guided, _unmasked(trial, guide)))
        return [*checks, tried(f"{title} can be closed twice", _unclosed(host, config))]


def _problems(trial: Trial, mode: Callable[[Trial], Any]) -> Iterator[str]:
    comparison = mode(trial)
    if not comparison.passed:
        yield comparison.as_text()


def _unclosed(host: PluginHost, config: Any) -> Iterator[str]:
    folder = open_model(config.model, host)
    executor = host.executors.make(config.parallel.executor, config, folder, host)
    executor.start()
    executor.close()
    executor.close()
    yield from ()


def _unmasked(trial: Trial, guide: GuideRequest) -> Iterator[str]:
    """Two guided requests beside a free one."""
    config = engine_config(trial.folder, **trial.options)
    tokenizer = load_tokenizer(config.model, open_model(config.model, trial.host), trial.host)
    assert tokenizer is not None
    core = EngineCore(config, trial.host)
    try:
        requests = [
            EngineRequest(
                request_id=str(sequence),
                sequences=(sequence,),
                prompt_token_ids=[5, 6, 7 + sequence],
                sampling=TokenSampling(temperature=1.0, seed=sequence, max_tokens=20),
                guide=guide if sequence else None,
            )
            for sequence in range(3)
        ]
        core.add(requests)
        tokens: dict[int, list[int]] = {0: [], 1: [], 2: []}
        for _ in range(MAX_IDLE_STEPS):
            if not core.has_work:
                break
            outputs = core.step()
            for sequence, new in outputs.by_sequence():
                tokens[sequence] += new
            yield from (f"a request ended with {end.error}" for end in outputs.ends if end.error)
    finally:
        core.close()
    for sequence in (1, 2):
        text = tokenizer.decode(tokens[sequence])
        if not re.fullmatch(REGEX, text):
            yield f"{text!r} was sampled where {REGEX} was asked for"
    if len(tokens[0]) != 20:
        yield f"{len(tokens[0])} tokens were sampled beside guided ones, not 20"
