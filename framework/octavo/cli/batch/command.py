"""``octavo run-batch FILE``."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from argparse import ArgumentParser, Namespace
from codecs import BOM_UTF8
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from octavo.cli.batch.requests import CHAT, COMPLETIONS, BatchRequest, parse_line, read_request
from octavo.cli.engine_flags import add_engine_flags, engine_keywords
from octavo.cli.fields import add_fields, given_fields
from octavo.cli.terminal import Terminal
from octavo.config.server import AccessConfig, AdapterConfig, ServerConfig
from octavo.errors import ConfigError, EngineDeadError, OctavoError
from octavo.server.http.errors import HttpError, full_reply_to
from octavo.wording import shown
from octavo_registry import PluginHost
from octavo_registry.faults import one_line

if TYPE_CHECKING:
    from octavo.cli.batch.answers import ResultsFile
    from octavo.frontend.async_llm import AsyncLLM
    from octavo.frontend.progress import ProgressBar
    from octavo.server.context import ServerContext

log = logging.getLogger(__name__)

NUM_UNDER_WAY = 2048
"""Requests that the engine has at a time: more than run, so that it always finds one to start."""

Line = BatchRequest | tuple[str | None, HttpError]
"""What a line asks, or why it cannot be asked."""


class RunBatchCommand:
    """Answers each line of a file; run again, it goes on where it ended."""

    def configure(self, parser: ArgumentParser) -> None:
        """Declare the files, the model and the flags of the engine."""
        parser.usage = "octavo run-batch FILE [--output FILE] [--model MODEL] [options]"
        parser.add_argument(
            "file", type=Path, metavar="FILE", help="requests, a JSON object a line"
        )
        parser.add_argument(
            "-o",
            "--output",
            "--output-file",
            type=Path,
            metavar="FILE",
            help="results (default: FILE.results.jsonl)",
        )
        parser.add_argument("--model", help="what to load (default: what the first line names)")
        parser.add_argument(
            "--served-model-name", metavar="NAME", help="what lines call it (default: the model)"
        )
        add_fields(parser, AdapterConfig, title="adapters options", only=("lora_modules",))
        add_engine_flags(parser, with_model=False)

    def run(self, args: Namespace, host: PluginHost) -> int:
        """Return 1 when a line was refused, has failed or, where the engine ends, has no answer."""
        from octavo.cli.batch.answers import ResultsFile, refusal
        from octavo.frontend.async_llm import AsyncLLM
        from octavo.frontend.progress import ProgressBar
        from octavo.server.adapters import check_adapters

        terminal = Terminal()
        texts = _lines(args.file)
        if not texts:
            raise ConfigError(f"{args.file} has no requests: a line of JSON for each is wanted")
        output = args.output or args.file.with_name(f"{args.file.stem}.results.jsonl")
        adapters = AdapterConfig(**given_fields(args, AdapterConfig))
        names = [module.name for module in adapters.modules]
        served = args.served_model_name or args.model or _first_model(args.file, texts, names)
        args.model = args.model or served
        check_adapters(adapters, (served,), is_on=getattr(args, "enable_lora", False))
        num_done = num_bad = num_left = 0
        end = ""
        with ResultsFile(output) as results:
            requests = []
            for line in _read(texts, (served, *names)):
                custom_id = line.custom_id if isinstance(line, BatchRequest) else line[0]
                if custom_id in results.done:
                    num_done += 1
                elif isinstance(line, BatchRequest):
                    requests.append(line)
                else:
                    results.append(refusal(*line))
                    num_bad += 1
            if requests:
                with terminal.working(f"loading {args.model}"):
                    llm = AsyncLLM(**engine_keywords(args, host), engine_process=False)
                try:
                    with ProgressBar(len(requests), shown=sys.stderr.isatty()) as bar:
                        server = _context(llm, host, served, adapters)
                        server.adapters.start()
                        work = _Work(server, requests, results, bar)
                        try:
                            asyncio.run(work.run())
                        except EngineDeadError as error:
                            end = str(error)
                        num_bad, num_left = num_bad + work.num_failed, work.num_left
                finally:
                    llm.close()
        summary = _summary(len(texts), num_done, num_bad, num_left)
        terminal.write(f"{summary}; results are in {output}\n")
        if end:
            terminal.write(f"The engine has ended: {end}\nRun the command again to go on.\n")
        return 1 if num_bad or num_left else 0


class _Work:
    """The requests still to be answered, taken one by one by tasks that run side by side."""

    def __init__(
        self,
        server: ServerContext,
        requests: list[BatchRequest],
        results: ResultsFile,
        bar: ProgressBar,
    ) -> None:
        from octavo.server.apis.chat.route import ChatRoutes
        from octavo.server.apis.completions.route import CompletionRoutes

        self._answers = {
            CHAT: ChatRoutes(server).create,
            COMPLETIONS: CompletionRoutes(server).create,
        }
        self._results, self._bar = results, bar
        self._remaining = iter(requests)
        self.num_left = len(requests)
        """That have no result."""
        self.num_failed = 0

    async def run(self) -> None:
        """Answer all; raises EngineDeadError once none can be answered any more."""
        try:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(NUM_UNDER_WAY):
                    request = next(self._remaining, None)
                    if request is None:
                        break
                    tasks.create_task(self._answer_from(request))
        except ExceptionGroup as group:
            raise group.exceptions[0] from group

    async def _answer_from(self, request: BatchRequest | None) -> None:
        while request is not None:
            await self._answer(request)
            request = next(self._remaining, None)

    async def _answer(self, request: BatchRequest) -> None:
        from octavo.cli.batch.answers import answer, refusal
        from octavo.server.http.exchange import Exchange, Reply

        num_tokens = 0
        try:
            exchange = Exchange({"octavo.request_id": uuid4().hex}, request.body)
            reply = await self._answers[request.url](exchange)
            assert isinstance(reply, Reply)  # lines that ask for a stream were refused
            body = json.loads(reply.body)
            result = answer(request.custom_id, reply.status, body)
            num_tokens = body["usage"]["completion_tokens"]
        except EngineDeadError:
            raise
        except Exception as error:  # whatever it is, the other lines are answered
            if not isinstance(error, OctavoError):
                log.exception("the line %s failed", shown(request.custom_id))
            result = refusal(request.custom_id, error, request.url)
            self.num_failed += 1
        self._results.append(result)
        self.num_left -= 1
        self._bar.advance(num_requests=1, num_tokens=num_tokens)


def _context(
    llm: AsyncLLM, host: PluginHost, served_model: str, adapters: AdapterConfig
) -> ServerContext:
    """What routes find around them, as in a server that trusts whoever wrote the file."""
    from octavo.server.context import ServerContext

    access = AccessConfig(trust_request_chat_template=True)
    config = ServerConfig(access=access, adapters=adapters)
    return ServerContext(engine=llm, host=host, config=config, model_names=(served_model,))


def _summary(num_lines: int, num_done: int, num_bad: int, num_left: int) -> str:
    lines = "1 line" if num_lines == 1 else f"{num_lines} lines"
    if num_done == num_lines:
        return f"{lines}, all done before"
    counts = {
        "done before": num_done,
        "answered": num_lines - num_done - num_bad - num_left,
        "refused or failed": num_bad,
        "without an answer": num_left,
    }
    return f"{lines}: {', '.join(f'{count} {what}' for what, count in counts.items() if count)}"


def _lines(file: Path) -> list[tuple[int, bytes]]:
    """Lines with their numbers; read once, since the file may be a pipe."""
    try:
        text = file.read_bytes().removeprefix(BOM_UTF8)  # Windows may write it
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error}") from error
    lines = enumerate(text.splitlines(), start=1)
    return [(number, line) for number, line in lines if line.strip()]


def _read(lines: list[tuple[int, bytes]], model_names: Collection[str]) -> Iterator[Line]:
    seen: set[str] = set()
    for number, text in lines:
        custom_id = None
        try:
            custom_id, line = parse_line(text)
            if custom_id in seen:
                again, custom_id = custom_id, None  # its result must not stand for the other's
                raise HttpError(400, f"custom_id={again!r} is that of an earlier line")
            seen.add(custom_id)
            yield read_request(custom_id, line, model_names)
        except Exception as error:
            told = f"line {number}: {error if isinstance(error, OctavoError) else one_line(error)}"
            reply = full_reply_to(error)
            yield custom_id, HttpError(reply.status, told, param=reply.param, code=reply.code)


def _first_model(file: Path, lines: list[tuple[int, bytes]], adapters: Collection[str]) -> str:
    reasons = []
    for number, text in lines:
        try:
            model = parse_line(text)[1]["body"]["model"]
        except HttpError as error:
            reasons.append(f" (line {number}: {error})")
            continue
        except (KeyError, TypeError):
            continue
        if isinstance(model, str) and model and model not in adapters:
            return model
    reason = reasons[0] if reasons else ""
    raise ConfigError(f"no line of {file} names a model{reason}; give one with --model")
