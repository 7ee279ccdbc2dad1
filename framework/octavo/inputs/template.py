"""Chat templates: Jinja source in a sandbox, under the rules that Hugging Face models expect."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NoReturn

from jinja2 import TemplateError, TemplateSyntaxError, meta, nodes
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from octavo.errors import ConfigError, MessageError, PromptError
from octavo.inputs.foreseen import is_foreseen
from octavo_registry.faults import one_line


def load_chat_template(path_or_text: str | os.PathLike[str]) -> str:
    """Return a template's source, from a file or as it is given."""
    text = os.fspath(path_or_text)
    if any(char in text for char in "{}\n"):
        return text
    try:
        return Path(text).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"chat_template={text!r} is no Jinja source and cannot be read as a file: {error}"
        ) from error


class ChatTemplate:
    """A compiled template. ``variables`` are what it may name in each rendering: "bos_token" ..."""

    def __init__(
        self,
        source: str,
        variables: Mapping[str, Any] | None = None,
        *,
        max_chars: int | None = None,
    ) -> None:
        """One that writes more than ``max_chars`` is ended; None: never."""
        self.source = source
        self._max_chars = max_chars
        self._variables = dict(variables or {})
        try:
            self._template = _environment().from_string(source)
        except TemplateSyntaxError as error:
            raise PromptError(
                f"the chat template is no valid Jinja, line {error.lineno}: {error.message}",
                param="chat_template",
            ) from error
        except (SyntaxError, RecursionError) as error:  # from Python, which Jinja compiles it to
            raise PromptError(
                f"the chat template is no valid Jinja: {one_line(error)}", param="chat_template"
            ) from error

    def render(self, messages: list[dict[str, Any]], /, **variables: Any) -> str:
        """Run the template; whatever it raises is a MessageError with its message."""
        try:
            return self._run({**self._variables, **variables, "messages": messages})
        except TemplateError as error:
            reason = " ".join(str(error).split())
            raise MessageError(f"the chat template refuses the messages: {reason}") from error
        except Exception as error:  # a template computes: any error of Python can come out
            raise MessageError(
                f"the chat template fails on these messages: {one_line(error)}"
            ) from error

    def _run(self, variables: dict[str, Any]) -> str:
        if self._max_chars is None:
            return self._template.render(variables)
        pieces, room = [], self._max_chars
        for piece in self._template.generate(variables):
            room -= len(piece)
            if room < 0:
                raise TemplateError(f"it writes more than {self._max_chars} characters")
            pieces.append(piece)
        return "".join(pieces)

    @cached_property
    def takes_text(self) -> bool:
        """Whether it shows a content that is a string."""
        return self._shows(lambda text: text)

    @cached_property
    def takes_parts(self) -> bool:
        """Whether it shows the text in a content that is a list of typed parts."""
        return self._shows(lambda text: [{"type": "text", "text": text}])

    @cached_property
    def takes_objects(self) -> bool:
        """Whether it shows the arguments of a call that are an object, and not their JSON text."""
        return self._shows_arguments(lambda value: value) or not self._shows_arguments(json.dumps)

    @cached_property
    def takes_late_system(self) -> bool:
        """Whether it shows a system's message that follows a user's, and in its place."""
        texts = [secrets.token_hex(8), secrets.token_hex(8)]
        wrapped = texts if self.takes_text else [[{"type": "text", "text": t}] for t in texts]
        user, system = wrapped
        messages = [{"role": "user", "content": user}, {"role": "system", "content": system}]
        try:
            rendered = self.render(
                messages, tools=None, documents=None, add_generation_prompt=False
            )
        except PromptError:
            return False
        return -1 < rendered.find(texts[0]) < rendered.find(texts[1])

    @cached_property
    def variables(self) -> frozenset[str]:
        """What it may read of what a caller gives it."""
        environment = _environment()
        tree = environment.parse(self.source)
        # Jinja counts a name that is set in each branch of a condition.
        names = meta.find_undeclared_variables(tree).intersection(_may_read(tree, set()))
        return frozenset(names - environment.globals.keys())

    @cached_property
    def names(self) -> frozenset[str]:
        """What it compares values with, and by which names it asks for them."""
        values = (node.value for node in self._tree.find_all(nodes.Const))
        attributes = (node.attr for node in self._tree.find_all(nodes.Getattr))
        return frozenset((*attributes, *(text for text in values if isinstance(text, str))))

    @cached_property
    def literals(self) -> frozenset[str]:
        """Texts that it may write."""
        return self.names.union(node.data for node in self._tree.find_all(nodes.TemplateData))

    @cached_property
    def changes(self) -> tuple[Change, ...]:
        """What it does to letters of texts."""
        return tuple(_changes(self._tree))

    @cached_property
    def is_foreseen(self) -> bool:
        """Whether it does nothing else to texts than ``changes`` and the like."""
        return is_foreseen(self._tree)

    @cached_property
    def ignores_messages(self) -> bool:
        """Whether it is known to show nothing of what messages say; one that raises is not."""
        if "messages" not in self.variables:
            return True
        text = secrets.token_hex(8)
        user = {"role": "user", "content": text}
        parts = {"role": "user", "content": [{"type": "text", "text": text}]}
        calls = _calls({text: text})
        rendered = [self._rendered(each) for each in ([user], [parts], [user, *calls])]
        return rendered[0] is not None and not any(
            text in (each or "").lower() for each in rendered
        )

    @property
    def _tree(self) -> nodes.Template:
        return _environment().parse(self.source)

    def mentions(self, word: str) -> bool:
        """Whether the word stands in its source, where it can be told apart from others."""
        return word in self.source

    def _shows_arguments(self, wrap: Callable[[Any], Any]) -> bool:
        text = secrets.token_hex(8)
        rendered = self._rendered([{"role": "user", "content": "a"}, *_calls(wrap({text: 1}))])
        # One that expects text prints the object as Python does; one that expects an object
        # escapes the text's quotes.
        return rendered is not None and (
            text in rendered and f"'{text}'" not in rendered and f'\\"{text}' not in rendered
        )

    def _shows(self, wrap: Callable[[str], Any]) -> bool:
        text = secrets.token_hex(8)
        rendered = self._rendered([{"role": "user", "content": wrap(text)}])
        # A template that expects a string prints the list itself, as Python or as JSON.
        return rendered is not None and (
            text in rendered and "'type'" not in rendered and '"type"' not in rendered
        )

    def _rendered(self, messages: list[dict[str, Any]]) -> str | None:
        """None: it refuses them."""
        try:
            return self.render(messages, tools=None, documents=None, add_generation_prompt=False)
        except PromptError:
            return None


def _calls(arguments: Any) -> list[dict[str, Any]]:
    """A call and its result."""
    function = {"name": "f", "arguments": arguments}
    call = {"id": "a1b2c3d4e", "type": "function", "function": function}
    return [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "a", "name": "f", "tool_call_id": call["id"]},
    ]


_CASES: Final[Mapping[str, Callable[[str], str]]] = {
    "lower": str.lower, "upper": str.upper, "title": str.title, "capitalize": str.capitalize,
}  # fmt: skip
Change = tuple[str, str, str]
"""A method of texts, and for "replace" what it takes out and puts in, which is "" for "split"."""
SPLIT: Final = "split"


def changed(text: str, changes: Iterable[Change]) -> Iterator[str]:
    """The text, and what it is once a template has changed letters or left out parts."""
    yield text
    for name, old, new in changes:
        made = _CASES[name](text) if name in _CASES else text.replace(old, new)
        if made != text:
            text = made
            yield text


def _changes(tree: nodes.Template) -> Iterator[Change]:
    """Changes to texts by a filter or by a method."""
    calls = [(node.name, node.args) for node in tree.find_all(nodes.Filter)]
    calls += [
        (node.node.attr, node.args)
        for node in tree.find_all(nodes.Call)
        if isinstance(node.node, nodes.Getattr)
    ]
    for name, args in calls:
        given = [arg.value for arg in args if isinstance(arg, nodes.Const)]
        if name == "replace" and len(given) > 1 and given[0]:
            yield "replace", str(given[0]), str(given[1])
        elif name == "split" and given and given[0]:
            yield SPLIT, str(given[0]), ""
    for name in {name for name, _ in calls} & _CASES.keys():
        yield name, "", ""
    if any(name == "splitlines" or (name == "split" and not args) for name, args in calls):
        for blank in " \t\r\n":
            yield "replace", blank, ""


_SCOPES: Final = (
    nodes.For, nodes.Macro, nodes.CallBlock, nodes.FilterBlock, nodes.Scope, nodes.With,
)  # fmt: skip
"""What is set in them is not set behind them."""


def _may_read(node: nodes.Node, known: set[str]) -> Iterator[str]:
    """Names that are read where they may not be set yet; to ``known`` come those that then are."""
    if isinstance(node, nodes.Name):
        if node.ctx != "load":
            known.add(node.name)
        elif node.name not in known:
            yield node.name
    elif isinstance(node, nodes.If):
        ends = []
        for branch in (node, *node.elif_):
            yield from _may_read(branch.test, known)
            ends.append(set(known))
            for child in branch.body:
                yield from _may_read(child, ends[-1])
        ends.append(set(known))
        for child in node.else_:
            yield from _may_read(child, ends[-1])
        known |= set.intersection(*ends)
    else:
        children = list(node.iter_child_nodes())
        if isinstance(node, nodes.Assign | nodes.For):
            children[:2] = children[1::-1]  # the value, then the name
        inner = set(known) if isinstance(node, _SCOPES) else known
        for child in children:
            yield from _may_read(child, inner)


class _GenerationTag(Extension):
    """``{% generation %}`` marks the assistant's text for training; here it changes nothing."""

    tags = {"generation"}  # noqa: RUF012  # as the base class declares it

    def parse(self, parser: Parser) -> nodes.Node:
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=lineno)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, LoopControlExtension]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes HTML characters, which a model has never seen in JSON.
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)
