"""Coding agents that others make, installed as tests/agents pins them, at work on a server here."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
import subprocess
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from markdown import ROOT, code_blocks
from scripted_model.folder import call

PACKAGES = Path(__file__).parent / "agents"
NPM = (
    *("npm", "install", "--ignore-scripts", "--no-audit", "--no-fund"),
    *("--fetch-retries=1", "--fetch-retry-mintimeout=1000"),
)
CAPTURED: dict[str, Any] = {"capture_output": True, "text": True}
INSTALL_SECONDS = 180
TASK_SECONDS = 60
NOBODY = "http://127.0.0.1:9"
"""A proxy that is not there: what an agent asks of others than the server fails at once."""
TASK = "{}: read missing.txt, write leaves into note.txt, look at it and at the folder."
MORE = "Now change leaves to sheets."
DONE, DONE_MORE = "note.txt holds leaves.", "note.txt holds sheets now."


@dataclass(frozen=True)
class Agent:
    """How one is started, and what the model says while it works."""

    program: tuple[str, ...]
    """Its file below node_modules, and arguments that stand before a task."""
    more: tuple[str, ...]
    """Further ones to go on with the last conversation."""
    block: str
    """The kind of the block of docs/agents.md that has its settings."""
    file: str | None
    """Where they stand below its home; None: they are environment variables."""
    quiet: dict[str, str]
    """Further variables, so that it asks nobody else."""
    script: tuple[tuple[str, str], ...]
    """What the model answers, the last turn first."""


@dataclass(frozen=True)
class Workplace:
    """A home and a folder of an agent's own, and a server."""

    agent: Agent
    installed: Path
    home: Path
    folder: Path
    url: str

    def ask(self, *arguments: str) -> str:
        """What the agent shows; it and all that it started ends here."""
        (block,) = code_blocks(ROOT / "docs" / "agents.md", self.agent.block)
        settings = block.replace("http://127.0.0.1:8000", self.url)
        exports = {}
        if self.agent.file is None:
            exports = dict(re.findall(r"^export (\w+)=(.*)$", settings, re.MULTILINE))
        else:
            (self.home / self.agent.file).parent.mkdir(parents=True, exist_ok=True)
            (self.home / self.agent.file).write_text(settings)
        program, *flags = self.agent.program
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "HTTP_PROXY": NOBODY,
            "HTTPS_PROXY": NOBODY,
            "NO_PROXY": "127.0.0.1",
            **exports,
            **self.agent.quiet,
        }
        file = self.installed / "node_modules" / program
        if not file.exists():
            pytest.skip(f"{program} is not made for this machine")
        runs = ("node",) if file.suffix in (".js", ".cjs") else ()
        with subprocess.Popen(
            [*runs, str(file), *flags, *arguments],
            cwd=self.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            process_group=0,
        ) as process:
            late = threading.Timer(TASK_SECONDS, os.killpg, (process.pid, signal.SIGKILL))
            late.start()
            shown, told = process.communicate()
            late.cancel()
            with suppress(ProcessLookupError):  # what it has started and left
                os.killpg(process.pid, signal.SIGKILL)
        assert process.returncode == 0, f"{process.returncode}\n{shown}\n{told}"
        return shown


def install(name: str, cache: Path) -> Path:
    """The folder with node_modules, made once for each lock file; skips where that fails."""
    lock = (PACKAGES / name / "package-lock.json").read_bytes()
    made = cache / hashlib.sha256(lock).hexdigest()[:16]
    if made.exists():
        return made
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    being_made = cache / f"{made.name}.{os.getpid()}"
    shutil.copytree(PACKAGES / name, being_made)
    try:
        subprocess.run(NPM, cwd=being_made, check=True, timeout=INSTALL_SECONDS, **CAPTURED)
    except subprocess.SubprocessError as error:
        shutil.rmtree(being_made)
        pytest.skip(f"npm cannot install {name}: {error}: {str(error.stderr)[:300]}")
    being_made.rename(made)
    return made


CLAUDE_CODE = Agent(
    program=(
        "@anthropic-ai/claude-code/cli-wrapper.cjs",
        *("--allowedTools", "Write,Read,Edit,Bash", "--print"),
    ),
    more=("--continue",),
    block="sh claude_code",
    file=None,
    quiet={},
    script=(
        ("sheets.*has been updated", DONE_MORE),
        (
            f"1\tleaves.*{MORE}",
            call("Edit", file_path="note.txt", old_string="leaves", new_string="sheets"),
        ),
        ("1\tleaves.*note[.]txt\n</tool_response>", DONE),
        (
            "File created successfully",
            f"{call('Read', file_path='note.txt')}\n{call('Bash', command='ls', description='d')}",
        ),
        ("No such file", "I write it.\n" + call("Write", file_path="note.txt", content="leaves\n")),
        ("", "I look.\n" + call("Bash", command="cat missing.txt", description="d")),
    ),
)

PATCH = """apply_patch <<'END'
*** Begin Patch
*** Update File: note.txt
@@
-leaves
+sheets
*** End Patch
END"""


CODEX = Agent(
    program=(
        "@openai/codex/bin/codex.js",
        *("-c", "check_for_update_on_startup=false", "-c", "analytics.enabled=false"),
        *("exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"),
    ),
    more=("resume", "--last"),
    block="toml codex",
    file=".codex/config.toml",
    quiet={},
    script=(
        ("Updated the following files", DONE_MORE),
        (f"leaves\n+</tool_response>.*{MORE}", call("exec_command", cmd=PATCH)),
        ("leaves\n+</tool_response>.*note[.]txt\n+</tool_response>", DONE),
        (
            "written\n+</tool_response>",
            f"{call('exec_command', cmd='cat note.txt')}\n{call('exec_command', cmd='ls')}",
        ),
        (
            "No such file",
            "I write it.\n" + call("exec_command", cmd="echo leaves > note.txt; echo written"),
        ),
        ("", "I look.\n" + call("exec_command", cmd="cat missing.txt")),
    ),
)


OPENCODE = Agent(
    program=("opencode-linux-x64-baseline/bin/opencode", "run"),
    more=("--continue",),
    block="json opencode",
    file=".config/opencode/opencode.json",
    quiet={
        "OPENCODE_DISABLE_AUTOUPDATE": "1",
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
        "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
    },
    script=(
        ("Edit applied", DONE_MORE),
        (
            f"1: leaves.*{MORE}",
            call("edit", filePath="note.txt", oldString="leaves", newString="sheets"),
        ),
        ("1: leaves.*note[.]txt\n+</tool_response>", DONE),
        (
            "Wrote file",
            f"{call('read', filePath='note.txt')}\n{call('bash', command='ls', description='d')}",
        ),
        ("No such file", "I write it.\n" + call("write", filePath="note.txt", content="leaves\n")),
        ("", "I look.\n" + call("bash", command="cat missing.txt", description="d")),
    ),
)


def _shell(command: str) -> str:
    return call("run_shell_command", command=command, is_background=False)


QWEN_CODE = Agent(
    program=("@qwen-code/qwen-code/cli.js", "--yolo"),
    more=("--continue",),
    block="json qwen_code",
    file=".qwen/settings.json",
    quiet={"HTTP_PROXY": "", "HTTPS_PROXY": ""},  # it would ask a proxy for this machine, too
    script=(
        ("changed\n", DONE_MORE),
        (f"Output: leaves.*{MORE}", _shell("sed -i s/leaves/sheets/ note.txt && echo changed")),
        ("Output: leaves.*Output: note[.]txt", DONE),
        ("Output: written", f"{_shell('cat note.txt')}\n{_shell('ls')}"),
        ("No such file", "I write it.\n" + _shell("echo leaves > note.txt; echo written")),
        ("", "I look.\n" + _shell("cat missing.txt")),
    ),
)
AGENTS = {
    "claude_code": CLAUDE_CODE,
    "codex": CODEX,
    "opencode": OPENCODE,
    "qwen_code": QWEN_CODE,
}


def whole_script() -> list[tuple[str, str]]:
    """That of all agents: each task names its agent."""
    return [
        (f"{TASK.format(name)}.*{pattern}", answer)
        for name, agent in AGENTS.items()
        for pattern, answer in agent.script
    ]
