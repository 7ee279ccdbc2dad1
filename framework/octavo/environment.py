"""Every environment variable of Octavo's, and the one place that reads them.

Options belong to flags and keywords; a variable is for what must hold before there are any, for
secrets, and for whole machines. ``docs/environment.md`` has this table.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Final, Literal

from octavo.errors import ConfigError
from octavo.vllm_names import VARIABLES as VLLM_VARIABLES
from octavo.vllm_names import as_flags

PREFIX: Final = "OCTAVO_"
ON: Final = ("1", "true", "yes", "on")
OFF: Final = ("", "0", "false", "no", "off")


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """One variable; an empty value counts as none."""

    name: str
    kind: Literal["switch", "text", "path", "URL"]
    help: str
    default: str = ""
    """What holds without it, in words."""

    def text(self) -> str | None:
        """Return the value; None without one."""
        return os.environ.get(self.name, "").strip() or None

    def is_set(self) -> bool:
        """Whether it is there at all, if only empty: a secret that was not found looks so."""
        return self.name in os.environ

    def path(self) -> Path | None:
        """Return the value as a path; ``~`` is the user's home."""
        text = self.text()
        return None if text is None else Path(text).expanduser()

    def is_on(self) -> bool:
        """Whether the switch is on; a value that is neither on nor off is an error."""
        value = (self.text() or "").lower()
        if value not in (*ON, *OFF):
            raise ConfigError(f"{self.name}={value!r} must be one of {' '.join((*ON, *OFF[1:]))}")
        return value in ON

    def is_not_off(self) -> bool:
        """Whether it is set to anything but an off value: for wishes that must not be misread."""
        return (self.text() or "").lower() not in OFF


API_KEY: Final = Variable(
    name="OCTAVO_API_KEY",
    kind="text",
    help="A key that `octavo serve` accepts besides those of `--api-key`, and the one that "
    "`octavo chat`, `complete` and `bench` send to a server.",
)
ADMIN_KEY: Final = Variable(
    name="OCTAVO_ADMIN_KEY",
    kind="text",
    help="A key that `octavo serve` accepts besides those of `--admin-key`: for the operator's "
    "routes, such as those that load adapters, and all others.",
)
VLLM_API_KEY: Final = "VLLM_API_KEY"
"""Not read, but whoever sets it wants no open server."""
ALLOW_RUNTIME_LORA: Final = Variable(
    name="OCTAVO_ALLOW_RUNTIME_LORA_UPDATING",
    kind="switch",
    default="off",
    help="The same as `--allow-runtime-lora`: requests may load and unload adapters.",
)
LOGGING_LEVEL: Final = Variable(
    name="OCTAVO_LOGGING_LEVEL",
    kind="text",
    default="`INFO` for `octavo serve`, else `WARNING`",
    help="`DEBUG`, `INFO`, `WARNING`, `ERROR` or `CRITICAL`: what the command line, the server and "
    "the engine's process write to standard error.",
)
LOGGING_CONFIG: Final = Variable(
    name="OCTAVO_LOGGING_CONFIG",
    kind="path",
    help="A JSON file for Python's `logging.config.dictConfig`, in place of our handlers; each "
    "process applies it. Our loggers begin with `octavo`; requests are `octavo.access`.",
)
TRACE_FUNCTION: Final = Variable(
    name="OCTAVO_TRACE_FUNCTION",
    kind="path",
    help="How the names of files begin that record every call and return of Octavo's functions, "
    "one file a process, to find where one hangs or crashes. Slow.",
)
NO_USAGE_STATS: Final = Variable(
    name="OCTAVO_NO_USAGE_STATS",
    kind="switch",
    default="off",
    help="Keep no usage statistics, not even on this machine.",
)
DO_NOT_TRACK: Final = Variable(
    name="DO_NOT_TRACK",
    kind="switch",
    default="off",
    help="The same, as other programs call it.",
)
USAGE_STATS_URL: Final = Variable(
    name="OCTAVO_USAGE_STATS_URL",
    kind="URL",
    help="Where the usage statistics are sent, too; without it nothing leaves the machine.",
)
USE_MODELSCOPE: Final = Variable(
    name="OCTAVO_USE_MODELSCOPE",
    kind="switch",
    default="off",
    help="Names of models are those of ModelScope instead of Hugging Face.",
)
OFFLINE: Final = Variable(
    name="OCTAVO_OFFLINE",
    kind="switch",
    default="off",
    help="Hubs are not asked; only what has been fetched before is used.",
)
JIT: Final = Variable(
    name="OCTAVO_JIT",
    kind="switch",
    default="on",
    help="`0`: a CUDA kernel that was not built ahead is an error that names it; otherwise it is "
    "built when first used.",
)
KERNEL_CACHE: Final = Variable(
    name="OCTAVO_KERNEL_CACHE",
    kind="path",
    default="`~/.cache/octavo/kernels`",
    help="Where kernels are kept that are built when first used.",
)

VARIABLES: Final = (
    API_KEY,
    ADMIN_KEY,
    ALLOW_RUNTIME_LORA,
    LOGGING_LEVEL,
    LOGGING_CONFIG,
    TRACE_FUNCTION,
    NO_USAGE_STATS,
    DO_NOT_TRACK,
    USAGE_STATS_URL,
    USE_MODELSCOPE,
    OFFLINE,
    JIT,
    KERNEL_CACHE,
)
"""All of them; the last two are read by the kernels' package, which imports nothing of ours."""


def config_home() -> Path:
    """Return the folder of the user's configuration files."""
    given = os.environ.get("XDG_CONFIG_HOME", "")
    return Path(given) if given.startswith("/") else Path.home() / ".config"


def misspelled() -> list[str]:
    """Say of each variable that is close to one of ours, and none, which is meant."""
    names = [variable.name for variable in VARIABLES]
    given = [name for name in os.environ if name.startswith(PREFIX) and name not in names]
    found = [(name, get_close_matches(name, names, n=1, cutoff=0.8)) for name in sorted(given)]
    return [f"{name} is not read; {close[0]} is" for name, close in found if close]


def vllm_variables() -> list[str]:
    """Say of each variable of vLLM's that is set what stands here in its place."""
    lines = []
    for name in sorted(each for each in os.environ if each.startswith("VLLM_")):
        there = VLLM_VARIABLES.get(name)
        lines.append(f"{name} is not read" + (f"; {as_flags(there)} is" if there else ""))
    return lines
