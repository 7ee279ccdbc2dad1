"""``octavo generate MODEL PROMPT...``."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING, Any

from octavo.cli.engine_flags import (
    add_engine_flags,
    add_sampling_flags,
    engine_keywords,
    given_sampling,
    sampling_params,
)
from octavo.cli.terminal import Terminal
from octavo.errors import RequestFailedError
from octavo.wording import counted
from octavo_registry import PluginHost

if TYPE_CHECKING:
    from octavo.outputs import RequestOutput

MAX_TOKENS = 256


class GenerateCommand:
    """Continues prompts: one as a stream, several as one batch."""

    def configure(self, parser: ArgumentParser) -> None:
        """Declare the prompts and the flags of engine and sampling."""
        parser.usage = "octavo generate MODEL PROMPT... [options]"
        add_engine_flags(parser)
        parser.add_argument(
            "prompts", metavar="PROMPT", nargs="+", help='text to continue; "-" reads it from stdin'
        )
        parser.add_argument("--n", type=int, default=1, help="continuations of each (default: 1)")
        parser.add_argument("--json", action="store_true", help="write a line of JSON for each")
        add_sampling_flags(parser)

    def run(self, args: Namespace, host: PluginHost) -> int:
        """Return 1 when a prompt failed inside the engine."""
        is_stream = len(args.prompts) == 1 and args.n == 1 and not args.json
        given = given_sampling(args, n=args.n, output_kind="delta" if is_stream else "final")
        prompts = [sys.stdin.read() if text == "-" else text for text in args.prompts]
        terminal = Terminal()
        if is_stream:
            from octavo.cli.streaming import StreamingEngine

            with StreamingEngine(args, host, terminal) as engine:
                default = engine.llm.get_default_sampling_params()
                params = sampling_params(default, given, max_tokens=MAX_TOKENS)
                engine.write(engine.llm.generate(prompts[0], params))
            return 0
        outputs = _generate(args, host, prompts, given, terminal)
        for output in outputs:
            _write(output, terminal, as_json=args.json)
        failed = [output.error for output in outputs if output.error is not None]
        if failed and not args.json:
            asked = counted(len(outputs), "prompt")
            raise RequestFailedError(f"{len(failed)} of {asked}: {failed[0]}")
        return 1 if failed else 0


def _generate(
    args: Namespace,
    host: PluginHost,
    prompts: list[str],
    given: dict[str, Any],
    terminal: Terminal,
) -> list[RequestOutput]:
    from octavo.frontend.llm import LLM

    with terminal.working(f"loading {args.model}"):
        llm = LLM(**engine_keywords(args, host), engine_process=False)
    with llm:
        default = llm.get_default_sampling_params()
        params = sampling_params(default, given, max_tokens=MAX_TOKENS)
        return llm.generate(list(prompts), params, use_tqdm=terminal.tells_people)


def _write(output: RequestOutput, terminal: Terminal, *, as_json: bool) -> None:
    if as_json:
        texts = [
            {
                "text": completion.text,
                "finish_reason": completion.finish_reason,
                "num_tokens": len(completion.token_ids),
            }
            for completion in output.outputs
        ]
        line = {"prompt": output.prompt, "outputs": texts, "error": output.error}
        sys.stdout.write(json.dumps(line) + "\n")
        return
    for completion in output.outputs:
        terminal.write(f"> {output.prompt}\n", "bold cyan")
        terminal.write(f"{completion.text}\n\n")
