"""``octavo adapter inspect | merge``."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.cli.terminal import Terminal
from octavo.wording import counted
from octavo_registry import PluginHost

if TYPE_CHECKING:
    from octavo.layers.adapted import AdapterRows
    from octavo.model_folder import ModelFolder
    from octavo_registry import Adapter


class AdapterCommand:
    """Says what a LoRA adapter is and whether it fits a model, or makes a model with it."""

    def configure(self, parser: ArgumentParser) -> None:
        """Declare the two actions."""
        actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
        inspect = actions.add_parser("inspect", help="show an adapter, and check it")
        inspect.add_argument("--model", metavar="MODEL", help="check that it fits this model, too")
        merge = actions.add_parser(
            "merge", help="write a model that has the adapter in its weights"
        )
        merge.add_argument("--model", metavar="MODEL", required=True, help="what it is merged into")
        merge.add_argument(
            "--output",
            metavar="FOLDER",
            required=True,
            type=Path,
            help="a folder that is not there",
        )
        for action in (inspect, merge):
            action.add_argument("adapter", metavar="ADAPTER", help="a folder, or a name of a hub's")
            action.add_argument("--revision", metavar="REVISION", help="of MODEL")
            action.add_argument(
                "--base-model-name",
                metavar="NAME",
                help="what the adapter was trained on, where that is MODEL by another name",
            )
            action.add_argument("--json", action="store_true", help="write JSON")

    def run(self, args: Namespace, host: PluginHost) -> int:
        """What cannot be used is an error that names it."""
        from octavo.adapters.check import check_adapter
        from octavo.adapters.library import AdapterLibrary
        from octavo_registry.adapters import AdapterFolders

        terminal = Terminal()
        with terminal.working(f"reading {args.adapter}"):
            library = AdapterLibrary(host, AdapterFolders(allowed=None), uses_hub=True)
            folder = library.find(args.adapter)
            adapter = library.read(folder)
        shown = _facts(folder, adapter)
        if args.model is not None:
            with terminal.working(f"looking at {args.model}"):
                model, rows = _open(args, host)
                names = [args.model, args.base_model_name or args.model]
                adapter = check_adapter(adapter, rows.linears, model_names=names)
            shown["fits"] = args.model
            if args.action == "merge":
                with terminal.working(f"writing {args.output}"):
                    _merge(model, adapter, rows, args.output)
                shown["merged_into"] = str(args.output)
        if args.json:
            sys.stdout.write(json.dumps(shown, indent=2) + "\n")
        else:
            _write(shown, terminal)
        return 0


def _open(args: Namespace, host: PluginHost) -> tuple[ModelFolder, AdapterRows]:
    """The model's folder, with weights only where they are to be changed, and what adapters may."""
    import torch

    from octavo.config.engine import ModelConfig
    from octavo.layers.adapted import AdapterRows
    from octavo.model_folder import open_model
    from octavo.weights.load import build_model

    config = ModelConfig(model=args.model, revision=args.revision)
    folder = open_model(config, host, weights=args.action == "merge")
    rows = AdapterRows(1, 1, experts=True)
    build_model(folder, host, config=config, device=torch.device("meta"), adapters=rows)
    return folder, rows


def _merge(model: ModelFolder, adapter: Adapter, rows: AdapterRows, output: Path) -> None:
    from octavo.adapters.base_weights import check_base_weights
    from octavo.adapters.merge import write_merged
    from octavo.weights.checkpoint import open_checkpoint

    checkpoint = open_checkpoint(model.path)
    check_base_weights(adapter, checkpoint)
    write_merged(model.path, checkpoint, adapter, rows.linears, output, tied=rows.tied)


def _facts(folder: Path, adapter: Adapter) -> dict[str, Any]:
    matrices = [*adapter.down.values(), *adapter.up.values()]
    dtypes = sorted({str(matrix.dtype).removeprefix("torch.") for matrix in matrices})
    return {
        "adapter": str(folder),
        "base_model": adapter.base_model,
        "content_hash": adapter.content_hash,
        "ranks": sorted({len(matrix) for matrix in adapter.down.values()}),
        "scalings": sorted(set(adapter.scaling.values())),
        "modules": dict(Counter(name.rpartition(".")[2] for name in adapter.down)),
        "num_parameters": sum(matrix.numel() for matrix in matrices),
        "num_bytes": sum(matrix.numel() * matrix.element_size() for matrix in matrices),
        "dtypes": dtypes,
    }


def _write(shown: dict[str, Any], terminal: Terminal) -> None:
    terminal.write(f"{shown['adapter']}\n", "bold")
    modules = shown["modules"]
    rows = [
        ("  trained on", shown["base_model"] or "not said"),
        ("  rank", _joined(shown["ranks"])),
        ("  scaling", _joined(f"{scaling:.4g}" for scaling in shown["scalings"])),
        ("  modules", _joined(f"{name} ({times})" for name, times in modules.items())),
        (
            "  size",
            f"{counted(shown['num_parameters'], 'parameter')} in {_joined(shown['dtypes'])}, "
            f"{shown['num_bytes'] / 2**20:.1f} MiB",
        ),
        ("  hash", shown["content_hash"]),
    ]
    terminal.rows(rows)
    if "merged_into" in shown:
        terminal.write(f"Merged with {shown['fits']} into {shown['merged_into']}.\n", "bold green")
    elif "fits" in shown:
        terminal.write(f"It fits {shown['fits']}.\n", "bold green")


def _joined(values: Any) -> str:
    return ", ".join(map(str, values))
