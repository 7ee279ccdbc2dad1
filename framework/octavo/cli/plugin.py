"""``octavo plugin list | new | test``."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from octavo.cli.skeleton import KINDS, write_skeleton
from octavo_registry import PluginHost


class PluginCommand:
    """Lists the plugins that are loaded, writes a new one, or runs the conformance kit on one."""

    def configure(self, parser: ArgumentParser) -> None:
        """Declare the three actions."""
        actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
        listing = actions.add_parser("list", help="show what is loaded and what it registers")
        listing.add_argument("--json", action="store_true", help="write JSON")
        new = actions.add_parser("new", help="write the skeleton of a plugin package")
        new.add_argument("kind", choices=KINDS, metavar="KIND", help=f"one of: {', '.join(KINDS)}")
        new.add_argument("name", metavar="NAME", help="lower-case identifier, e.g. my_parser")
        new.add_argument("--dir", type=Path, help="folder to write (default: ./octavo-NAME)")
        test = actions.add_parser("test", help="run the conformance kit on a loaded plugin")
        test.add_argument("name", metavar="NAME", help="a name or module that `list` shows")
        test.add_argument("--json", action="store_true", help="write JSON")

    def run(self, args: Namespace, host: PluginHost) -> int:
        """Run the chosen action; ``test`` returns 1 when a check fails."""
        if args.action == "new":
            return _new(args)
        return _list(args, host) if args.action == "list" else _test(args, host)


def _list(args: Namespace, host: PluginHost) -> int:
    plugins: list[dict[str, Any]] = [
        {
            "name": record.name,
            "version": record.version,
            "distribution": record.distribution,
            "module": record.module,
            "registers": host.registrations(record.name),
        }
        for record in host.plugins
    ]
    sys.stdout.write(json.dumps(plugins, indent=2) + "\n" if args.json else _table(plugins))
    return 0


def _table(plugins: list[dict[str, Any]]) -> str:
    rows = [("NAME", "VERSION", "DISTRIBUTION", "REGISTERS")]
    for plugin in plugins:
        added = [f"{kind}: {', '.join(names)}" for kind, names in plugin["registers"].items()]
        given = plugin["distribution"] or f"(module {plugin['module']})"
        rows.append((plugin["name"], plugin["version"] or "-", given, "; ".join(added) or "-"))
    name, version, given = (max(len(row[column]) for row in rows) for column in range(3))
    return "".join(f"{a:<{name}}  {b:<{version}}  {c:<{given}}  {d}\n" for a, b, c, d in rows)


def _new(args: Namespace) -> int:
    folder = args.dir or Path(f"octavo-{args.name}")
    write_skeleton(args.kind, args.name, folder)
    sys.stdout.write(
        f"wrote {folder}\nnext: pip install -e {folder} && octavo plugin test {args.name}\n"
    )
    return 0


def _test(args: Namespace, host: PluginHost) -> int:
    from octavo.testing.kit import run  # the kit loads torch

    report = run(host, args.name)
    sys.stdout.write((report.as_json() if args.json else report.as_text()) + "\n")
    return 0 if report.passed else 1
