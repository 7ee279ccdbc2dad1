"""``octavo plan MODEL``."""

from __future__ import annotations

import dataclasses
import json
import sys
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from octavo.cli.engine_flags import add_engine_flags, engine_keywords
from octavo.cli.terminal import Terminal
from octavo.errors import ConfigError
from octavo.wording import counted
from octavo_registry import PluginHost

if TYPE_CHECKING:
    from octavo.execution.memory_budget import Budget

GIB = 1024**3
MOST_GIB = 1024**2


class PlanCommand:
    """Says whether a model fits, and how much of it, before its weights are fetched or read."""

    def configure(self, parser: ArgumentParser) -> None:
        """Declare the device and the flags of the engine."""
        parser.usage = "octavo plan MODEL [--memory GIB] [options]"
        add_engine_flags(parser)
        parser.add_argument(
            "--memory", type=float, metavar="GIB", help="plan for a device of so many GiB instead"
        )
        parser.add_argument("--json", action="store_true", help="write JSON, in bytes")

    def run(self, args: Namespace, host: PluginHost) -> int:
        """Return 1 when it does not fit."""
        from octavo.execution.memory_budget import budget_of
        from octavo.frontend.options import read_options

        if args.memory is not None and not 0 < args.memory <= MOST_GIB:
            raise ConfigError(f"memory={args.memory:g} must be above 0, and at most {MOST_GIB}")
        terminal = Terminal()
        config = read_options(engine_keywords(args, host), caller="octavo plan").config
        with terminal.working(f"planning {args.model}"):
            budget = budget_of(config, host, args.memory)
        if args.json:
            sys.stdout.write(json.dumps(dataclasses.asdict(budget), indent=2) + "\n")
        else:
            _write(budget, args.model, terminal)
        return 0 if budget.problem is None else 1


def _write(budget: Budget, model: str, terminal: Terminal) -> None:
    size = budget.num_parameters
    shown = f"{size / 1e9:.2f} B" if size >= 1e8 else f"{size / 1e6:.2f} M"
    terminal.write(f"{model}\n", "bold")
    terminal.write(f"{budget.architecture}, {shown} parameters in {budget.dtype}\n")
    terminal.write(f"on {budget.device}, {_gib(budget.usable_bytes)} of it for this engine\n\n")
    stored = "" if budget.file_bytes is None else f"{_gib(budget.file_bytes)} in files"
    per_token = f"{budget.bytes_per_token / 1024:.4g} KiB a token"
    if budget.window_bytes_per_sequence:
        per_token += f", {_gib(budget.window_bytes_per_sequence)} a sequence for windows"
    if budget.cross_bytes_per_sequence:
        per_token += f", {_gib(budget.cross_bytes_per_sequence)} a sequence for encoded media"
    if budget.state_bytes_per_sequence:
        state = _gib(budget.state_bytes_per_sequence)
        per_token += f", {state} a recurrent state, of {budget.num_state_lines}"
    rows = "" if budget.reads else counted(budget.max_num_seqs, "row")
    adapters = ("  adapters", _gib(budget.adapter_bytes), "at a time")
    terminal.rows(
        [
            ("  weights", _gib(budget.weight_bytes - budget.adapter_bytes), stored),
            *([adapters] if budget.adapter_bytes else []),
            ("  workspace", _gib(budget.workspace_bytes), f"{rows} a step" if rows else ""),
            *([] if budget.reads else [("  KV cache", _gib(budget.cache_bytes), per_token)]),
        ]
    )
    tokens = budget.num_blocks * budget.block_tokens
    reads = f"\n  {budget.reads}\n  texts of up to {budget.max_model_len:,} tokens\n\n"
    terminal.write(
        reads
        if budget.reads
        else f"\n  largest context  {budget.largest_context:,} of {budget.max_model_len:,} tokens\n"
        f"  at a time        {budget.concurrency:.1f} sequences of {budget.max_model_len:,} tokens"
        f" ({tokens:,} tokens of cache)\n\n"
    )
    if budget.problem is None:
        terminal.write("It fits.\n", "bold green")
        return
    terminal.write(f"It does not fit: {budget.problem}.\n", "bold red")
    terminal.write(f"What makes it fit: {budget.change}\n", "bold")


def _gib(num_bytes: int) -> str:
    return (
        f"{num_bytes / GIB:.2f} GiB" if num_bytes >= GIB / 100 else f"{num_bytes / 2**20:.2f} MiB"
    )
