"""Who answers in a terminal: an engine of this process, or a server."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from octavo.cli.engine_flags import (
    add_engine_flags,
    add_sampling_flags,
    engine_keywords,
    given_sampling,
    sampling_params,
)
from octavo.cli.spoken import Spoken
from octavo.cli.terminal import Terminal
from octavo.client import Address, ServerError, get_json, parse_address, post_stream
from octavo.errors import ConfigError, PromptTooLongError
from octavo_registry import PluginHost

if TYPE_CHECKING:
    from octavo.cli.streaming import StreamingEngine
    from octavo.params import SamplingParams

Messages = Sequence[Mapping[str, Any]]


class Speaker(Protocol):
    """Writes a text as it comes; an interrupt at a terminal ends it early. Returns the text."""

    def chat(self, messages: Messages) -> str:
        """Answer a conversation."""
        ...

    def complete(self, text: str) -> str:
        """Go on with a text."""
        ...


def add_speaker_flags(parser: ArgumentParser) -> None:
    """Add MODEL or a server's URL, and the flags of engine and sampling."""
    parser.add_argument(
        "model",
        metavar="MODEL",
        nargs="?",
        help="a folder, or a name of a source's; with --url one of the server's models",
    )
    parser.add_argument("--url", help="ask a server there, such as http://localhost:8000")
    parser.add_argument("--api-key", help="of that server; default: OCTAVO_API_KEY")
    add_engine_flags(parser, with_model=False)
    add_sampling_flags(parser)


@contextmanager
def open_speaker(
    args: Namespace, host: PluginHost, terminal: Terminal, *, max_tokens: int | None
) -> Iterator[Speaker]:
    """Load the model, or ask the server for its first; ``max_tokens`` where none are given."""
    given = given_sampling(args, output_kind="delta")
    if args.url is not None:
        yield _remote(args, host, terminal, given, max_tokens)
        return
    if args.model is None:
        raise ConfigError("give a MODEL, or the --url of a server")
    if args.api_key is not None:
        raise ConfigError("--api-key is for a server; give its --url")
    from octavo.cli.streaming import StreamingEngine  # loads the engine

    with StreamingEngine(args, host, terminal) as engine:
        default = engine.llm.get_default_sampling_params()
        yield LocalSpeaker(engine, sampling_params(default, given, max_tokens=max_tokens))


class LocalSpeaker:
    """An engine of this process."""

    def __init__(self, engine: StreamingEngine, params: SamplingParams) -> None:
        self._engine = engine
        self._params = params

    def chat(self, messages: Messages) -> str:
        """Answer a conversation."""
        deltas = self._engine.llm.chat([dict(message) for message in messages], self._params)
        return self._engine.write(deltas, stoppable=sys.stdin.isatty())

    def complete(self, text: str) -> str:
        """Go on with a text."""
        deltas = self._engine.llm.generate(text, self._params)
        return self._engine.write(deltas, stoppable=sys.stdin.isatty())


class RemoteSpeaker:
    """A server that speaks OpenAI's API."""

    def __init__(self, address: Address, shared: dict[str, Any], terminal: Terminal) -> None:
        """``shared`` is what every request's body has."""
        self._address = address
        self._shared = shared
        self._terminal = terminal

    def chat(self, messages: Messages) -> str:
        """Answer a conversation."""
        return self._write("/v1/chat/completions", {"messages": list(messages)})

    def complete(self, text: str) -> str:
        """Go on with a text."""
        return self._write("/v1/completions", {"prompt": text})

    def _write(self, path: str, body: dict[str, Any]) -> str:
        spoken = Spoken(self._terminal)
        body = {
            **self._shared,
            **body,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        try:
            # Closing ends the connection, by which the server learns of an interrupt.
            with closing(post_stream(self._address, path, body)) as events:
                for event in events:
                    self._take(event, spoken)
        except ServerError as error:
            if error.code == "context_length_exceeded":
                raise PromptTooLongError(str(error)) from error
            raise
        except KeyboardInterrupt:
            if not sys.stdin.isatty():
                raise
            return spoken.end(stopped=True)
        return spoken.end()

    def _take(self, event: Any, spoken: Spoken) -> None:
        try:
            usage, choices = event.get("usage"), event["choices"]
            for choice in choices:
                text = choice["text"] if "text" in choice else choice["delta"].get("content")
                if text:
                    spoken.add(text, 1)
            if usage and not choices:
                spoken.num_tokens = usage["completion_tokens"]
        except (KeyError, TypeError, AttributeError):
            raise ServerError(f"{self._address}: an event has an unknown form") from None


def _remote(
    args: Namespace,
    host: PluginHost,
    terminal: Terminal,
    given: dict[str, Any],
    max_tokens: int | None,
) -> RemoteSpeaker:
    address = parse_address(args.url, args.api_key)
    unused = {"model", "plugins", "disable_plugins", "plugin_options", "seed"}
    names = [name for name in engine_keywords(args, host) if name not in unused]
    if names:
        flag = "--" + names[0].replace("_", "-")
        raise ConfigError(f"{flag} is for an engine of this process, and has no effect with --url")
    shared = {name: value for name, value in given.items() if name != "output_kind"}
    if max_tokens is not None:
        shared.setdefault("max_tokens", max(max_tokens, shared.get("min_tokens", 0)))
    if hasattr(args, "seed"):
        shared["seed"] = args.seed
    with terminal.working(f"asking {address}"):
        reply = get_json(address, "/v1/models")
    try:
        served = [str(model["id"]) for model in reply["data"]]
    except (KeyError, TypeError):
        raise ServerError(f"{address} lists no models") from None
    model = args.model if args.model is not None else next(iter(served), None)
    if model not in served:
        raise ConfigError(f"{address} has no model {model!r}; it has: {', '.join(served)}")
    return RemoteSpeaker(address, {"model": model, **shared}, terminal)
