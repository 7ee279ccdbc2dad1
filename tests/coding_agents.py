"""Coding agents that others make, installed as tests/agents pins them, at work on a server here."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from scripted_model.folder import call

PACKAGES = Path(__file__).parent / "agents"
NPM = (
    *("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"),
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
    settings: Callable[[str, str], dict[str, str]]
    """Environment variables for a server's address and a model."""
    files: Callable[[str, str], dict[str, str]]
    """Files below its home, for the same."""
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
    model: str

    def ask(self, *arguments: str) -> str:
        """What the agent shows; it and all that it started ends here."""
        for name, text in self.agent.files(self.url, self.model).items():
            (self.home / name).parent.mkdir(parents=True, exist_ok=True)
            (self.home / name).write_text(text)
        program, *flags = self.agent.program
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "HTTP_PROXY": NOBODY,
            "HTTPS_PROXY": NOBODY,
            "NO_PROXY": "127.0.0.1",
            **self.agent.settings(self.url, self.model),
        }
        with subprocess.Popen(
            ["node", str(self.installed / "node_modules" / program), *flags, *arguments],
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


def _claude_settings(url: str, model: str) -> dict[str, str]:
    return {
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_AUTH_TOKEN": "none",
        "ANTHROPIC_MODEL": model,
        "ANTHROPIC_SMALL_FAST_MODEL": model,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }


CLAUDE_CODE = Agent(
    program=(
        "@anthropic-ai/claude-code/cli-wrapper.cjs",
        *("--allowedTools", "Write,Read,Edit,Bash", "--print"),
    ),
    more=("--continue",),
    settings=_claude_settings,
    files=lambda url, model: {},
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


def _codex_files(url: str, model: str) -> dict[str, str]:
    lines = [
        f"model = {json.dumps(model)}",
        'model_provider = "octavo"',
        "check_for_update_on_startup = false",
        "[analytics]",
        "enabled = false",
        "[model_providers.octavo]",
        'name = "Octavo"',
        f'base_url = "{url}/v1"',
        'wire_api = "responses"',
    ]
    return {".codex/config.toml": "\n".join(lines)}


CODEX = Agent(
    program=(
        "@openai/codex/bin/codex.js",
        *("exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"),
    ),
    more=("resume", "--last"),
    settings=lambda url, model: {},
    files=_codex_files,
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
AGENTS = {"claude_code": CLAUDE_CODE, "codex": CODEX}


def whole_script() -> list[tuple[str, str]]:
    """That of all agents: each task names its agent."""
    return [
        (f"{TASK.format(name)}.*{pattern}", answer)
        for name, agent in AGENTS.items()
        for pattern, answer in agent.script
    ]
