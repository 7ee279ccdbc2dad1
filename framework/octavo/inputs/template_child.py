"""``python -m octavo.inputs.template_child``: runs chat templates, each in a copy of itself."""

from __future__ import annotations

import gc
import json
import os
from typing import IO, Any

import msgspec

from octavo.errors import MessageError, PromptError
from octavo.guided.copies import NICENESS, Copy
from octavo.guided.process import BY_LIMIT, Limits, open_pipes, read_frame, write_frame
from octavo.inputs.foreign_template import (
    CPU_SECONDS,
    MAX_CHARS,
    MEMORY_MIB,
    WALL_SECONDS,
    StartTemplates,
    TemplateAnswer,
    TemplateFacts,
    TemplateTask,
)
from octavo.inputs.template import ChatTemplate
from octavo_registry.faults import one_line


def main() -> None:
    """Answer until the parent closes standard input."""
    requests, answers = open_pipes()
    start = msgspec.msgpack.decode(read_frame(requests), type=StartTemplates)
    ChatTemplate("{{ messages }}").render([])  # what that loads, copies have
    gc.freeze()
    write_frame(answers, b"ready")
    while data := read_frame(requests):
        _answer(data, start.variables, answers)


def _answer(data: bytes, variables: dict[str, Any], answers: IO[bytes]) -> None:
    copy = Copy(lambda asked: msgspec.msgpack.encode(_run(asked, variables)))
    answer = copy.ask(data, WALL_SECONDS)
    if not answer:
        is_long = copy.end() in BY_LIMIT or copy.was_late
        cause = "is too slow" if is_long else "takes too much memory or stack"
        error = (
            f"the chat template {cause}: it was given up (limits: {CPU_SECONDS:.0f} s of one core, "
            f"{WALL_SECONDS:.0f} s, {MEMORY_MIB} MiB)"
        )
        answer = msgspec.msgpack.encode(TemplateAnswer(error=error))
    write_frame(answers, answer)
    copy.end()


def _run(data: bytes, variables: dict[str, Any]) -> TemplateAnswer:
    os.nice(NICENESS)
    Limits().begin(cpu_seconds=CPU_SECONDS, seconds=WALL_SECONDS, mib=MEMORY_MIB)
    task = msgspec.msgpack.decode(data, type=TemplateTask)
    try:
        template = ChatTemplate(task.source, variables, max_chars=MAX_CHARS)
        if not task.chat:
            return TemplateAnswer(facts=_facts(template))
        messages, given = json.loads(task.chat)
        return TemplateAnswer(text=template.render(messages, **given))
    except PromptError as error:
        return TemplateAnswer(error=str(error)[:2000], of_messages=isinstance(error, MessageError))
    except Exception as error:  # Jinja computes constants while it compiles
        return TemplateAnswer(error=f"the chat template cannot be compiled: {one_line(error)}")


def _facts(template: ChatTemplate) -> TemplateFacts:
    return TemplateFacts(
        **{name: getattr(template, name) for name in TemplateFacts.__struct_fields__}
    )


if __name__ == "__main__":
    main()
