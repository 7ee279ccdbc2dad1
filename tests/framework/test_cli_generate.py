"""``octavo generate``, ``complete`` and ``chat`` on a tiny model."""

from __future__ import annotations

import io
import json
import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

from octavo import LLM, SamplingParams
from octavo.cli import main
from octavo.cli.chat import TerminalChat
from octavo.cli.engine_flags import sampling_params
from octavo.cli.terminal import Terminal
from octavo.testing.random_model import make_random_model

FLAGS = ["--temperature", "0", "--max-tokens", "6", "--num-blocks", "64"]
GREEDY = SamplingParams(temperature=0, max_tokens=6)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_random_model(tmp_path_factory.mktemp("model"), max_position_embeddings=128)


@pytest.fixture(scope="module")
def llm(model: Path) -> LLM:
    return LLM(model, num_blocks=64)


def typed(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))


def texts(llm: LLM, prompts: list[str]) -> list[str]:
    return [o.outputs[0].text for o in llm.generate(prompts, GREEDY, use_tqdm=False)]


def test_one_prompt_gives_its_continuation_and_nothing_else(model, llm, capsys) -> None:
    assert main(["generate", str(model), "Once upon", *FLAGS]) == 0
    assert capsys.readouterr().out == texts(llm, ["Once upon"])[0] + "\n"


def test_several_prompts_are_shown_before_their_continuations(model, llm, capsys) -> None:
    assert main(["generate", str(model), *FLAGS, "a book", "the sea"]) == 0
    one, two = texts(llm, ["a book", "the sea"])
    assert capsys.readouterr().out == f"> a book\n{one}\n\n> the sea\n{two}\n\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["{model}", *FLAGS, "a book", "the sea"],
        [*FLAGS, "{model}", "a book", "the sea"],
        ["{model}", "a book", *FLAGS, "the sea"],
        ["{model}", *FLAGS, "--", "a book", "the sea"],
    ],
)
def test_prompts_stand_anywhere_among_options(model, llm, capsys, arguments) -> None:
    assert main(["generate", *[text.format(model=model) for text in arguments]]) == 0
    one, two = texts(llm, ["a book", "the sea"])
    assert capsys.readouterr().out == f"> a book\n{one}\n\n> the sea\n{two}\n\n"


@pytest.mark.parametrize(
    "command", [["generate", "nowhere", "a"], ["chat", "nowhere"], ["complete", "nowhere"]]
)
@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--temperature", "-1"], "temperature=-1.0 must be between 0 and 100"),
        (["--min-tokens", "9", "--max-tokens", "3"], "min_tokens=9 is above max_tokens=3"),
        (["--stop", ""], "stop string '' must have 1 to 256 characters"),
    ],
)
def test_a_sampling_value_that_cannot_be_is_refused_before_a_model_is_looked_for(
    capsys, command, flags, said
) -> None:
    assert main([*command, *flags]) == 2
    assert capsys.readouterr().err == f"octavo: error: {said}\n"


@pytest.mark.parametrize("recommended", [None, 20])
def test_min_tokens_raise_a_max_tokens_that_nobody_gave(recommended: int | None) -> None:
    default = SamplingParams(**({"max_tokens": recommended} if recommended else {}))
    params = sampling_params(default, {"min_tokens": 2000}, max_tokens=256)
    assert (params.min_tokens, params.max_tokens) == (2000, 2000)
    params = sampling_params(default, {"min_tokens": 5}, max_tokens=256)
    assert params.max_tokens == (recommended or 256)
    assert sampling_params(default, {}, max_tokens=None).max_tokens == recommended


class Telling(Terminal):
    """Keeps what it tells people."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[str] = []

    def remark(self, text: str) -> None:
        self.told.append(text)


def test_commands_of_a_chat_say_what_they_did() -> None:
    terminal = Telling()
    conversation = TerminalChat(None, terminal, system="Be brief.")
    for line in ("/reset", "/system Rhyme.", "/system"):
        assert conversation.take(line)
    assert terminal.told == [
        "What was said is forgotten.",
        "A new conversation, with this system message.",
        "A new conversation, without a system message.",
    ]


def test_json_is_one_line_for_each_prompt(model, llm, capsys, monkeypatch) -> None:
    typed(monkeypatch, "from a pipe")
    assert main(["generate", str(model), "-", "--json", "--n", "2", *FLAGS]) == 0
    line = json.loads(capsys.readouterr().out)
    assert line["prompt"] == "from a pipe\n"
    assert [output["text"] for output in line["outputs"]] == texts(llm, ["from a pipe\n"]) * 2
    assert line["outputs"][0]["num_tokens"] == 6


def test_a_prompt_that_is_too_long_is_one_line_of_error(model, capsys) -> None:
    assert main(["generate", str(model), "word " * 300, *FLAGS]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("octavo: error: ")
    assert captured.err.count("\n") == 1


def test_complete_continues_each_line_by_itself(model, llm, capsys, monkeypatch) -> None:
    typed(monkeypatch, "a book", "", "the sea")
    assert main(["complete", str(model), *FLAGS]) == 0
    assert capsys.readouterr().out == "".join(f"{t}\n" for t in texts(llm, ["a book", "the sea"]))


def test_line_ends_of_windows_are_no_part_of_a_line(model, capsys, monkeypatch) -> None:
    typed(monkeypatch, "/help\r", "/exit\r", "never said")
    assert main(["chat", str(model), *FLAGS]) == 0
    assert "/reset   forget the conversation" in capsys.readouterr().out


def test_an_interrupt_ends_a_command_that_reads_a_pipe(model, monkeypatch) -> None:
    typed(monkeypatch, "a book", "the sea")
    written = []

    def interrupted(self: Terminal, text: str, style: str = "") -> None:
        written.append(text)
        if len(written) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(Terminal, "write", interrupted)
    assert main(["complete", str(model), *FLAGS]) == 130
    assert len(written) == 1


def answers(llm: LLM, system: str, *said: str) -> list[str]:
    """What the model says to each, with all before it in view."""
    messages = [{"role": "system", "content": system}] if system else []
    given = []
    for text in said:
        messages.append({"role": "user", "content": text})
        answer = llm.chat(messages, GREEDY, use_tqdm=False)[0].outputs[0].text
        messages.append({"role": "assistant", "content": answer})
        given.append(answer)
    return given


def test_a_chat_remembers_what_was_said(model, llm, capsys, monkeypatch) -> None:
    typed(monkeypatch, "hello", "and you?")
    assert main(["chat", str(model), "--system", "Be brief.", *FLAGS]) == 0
    expected = answers(llm, "Be brief.", "hello", "and you?")
    assert capsys.readouterr().out == "".join(f"{text}\n" for text in expected)
    assert expected[1] != answers(llm, "", "hello", "and you?")[1]


def test_commands_of_a_chat_begin_anew_set_the_system_message_and_end(
    model, llm, capsys, monkeypatch
) -> None:
    typed(
        monkeypatch, "hello", "/reset", "hello", "/system Rhyme.", "hello", "/rset", "/exit", "more"
    )
    assert main(["chat", str(model), *FLAGS]) == 0
    plain, rhyme = answers(llm, "", "hello")[0], answers(llm, "Rhyme.", "hello")[0]
    told = "there is no command '/rset'; close: ['/reset']\n"
    assert capsys.readouterr().out == f"{plain}\n{plain}\n{rhyme}\n{told}"


def test_a_chat_that_no_longer_fits_is_an_error_in_a_pipe(model, capsys, monkeypatch) -> None:
    typed(monkeypatch, "word " * 300)
    assert main(["chat", str(model), *FLAGS]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "/reset" not in told  # there is nothing to forget yet


def test_a_conversation_that_is_full_points_to_reset(model, capsys, monkeypatch) -> None:
    typed(monkeypatch, "hello", "word " * 300)
    assert main(["chat", str(model), "--system", "Be brief.", *FLAGS]) == 2
    told = capsys.readouterr().err
    assert (
        "the conversation is full; /reset forgets it and begins anew (the prompt is too long: "
        in told
    )
    assert told.count("\n") == 1


@pytest.mark.parametrize("command", ["chat", "complete", "generate", "plan", "run-batch", "doctor"])
def test_help_of_a_command_loads_neither_torch_nor_rich(command) -> None:
    code = (
        "import sys\nfrom octavo.cli import main\n"
        f"try: main([{command!r}, '--help'])\nexcept SystemExit: pass\n"
        "heavy = {'torch', 'transformers', 'rich'} & set(sys.modules); assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"octavo {command}" in done.stdout


class Person:
    """Types into a command that runs in a terminal, and reads what it shows."""

    def __init__(self, *arguments: str) -> None:
        self._fd, inner = pty.openpty()
        self._unread = ""
        command = [
            sys.executable,
            "-c",
            "import sys; from octavo.cli import main; sys.exit(main())",
        ]
        self.process = subprocess.Popen(
            [*command, *arguments], stdin=inner, stdout=inner, stderr=inner, start_new_session=True,
            preexec_fn=lambda: os.close(os.open(os.ttyname(0), os.O_RDWR)),
        )  # fmt: skip
        os.close(inner)

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def wait_for_more(self) -> None:
        """Read five pieces, whatever they are."""
        for _ in range(5):
            assert select.select([self._fd], [], [], 120)[0]
            self._unread += os.read(self._fd, 4096).decode(errors="replace")

    def wait_for(self, text: str, *, seconds: float = 120) -> None:
        """Read up to the text, which has come after what was waited for before."""
        end = time.monotonic() + seconds
        while text not in self._unread and time.monotonic() < end:
            if select.select([self._fd], [], [], 0.5)[0]:
                self._unread += os.read(self._fd, 4096).decode(errors="replace")
        _, found, self._unread = self._unread.partition(text)
        assert found, f"{text!r} was not shown"


@pytest.mark.slow
def test_a_person_stops_an_answer_by_ctrl_c_is_told_of_refusals_and_goes_on(model) -> None:
    flags = ["--max-model-len", "100000", "--hf-overrides", '{"max_position_embeddings": 100000}']
    flags += ["--max-num-seqs", "1"]
    person = Person("chat", str(model), *flags, "--max-tokens", "90000", "--ignore-eos")
    try:
        person.wait_for("/help shows commands")
        person.wait_for("> ")
        person.type("hello\n")
        person.wait_for("hello\r\n")
        person.wait_for_more()  # in the middle of an answer of minutes
        person.type("\x03")
        person.wait_for("a second, first after")
        person.wait_for("> ")
        person.type("/nothing\n")
        person.wait_for("there is no command")
        person.wait_for("> ")
        person.type("\x04")
        assert person.process.wait(60) == 0
    finally:
        person.process.kill()
        person.process.wait()
