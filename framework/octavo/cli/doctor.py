"""``octavo doctor``."""

from __future__ import annotations

import dataclasses
import json
import sys
from argparse import ArgumentParser, Namespace

from octavo.cli.terminal import Terminal
from octavo_registry import PluginHost

SIGNS = {"good": ("ok", "green"), "note": ("--", "yellow"), "bad": ("NO", "red")}


class DoctorCommand:
    """Looks at what an engine stands on; each line is good, or says what to do."""

    def configure(self, parser: ArgumentParser) -> None:
        """Declare the form of the answer."""
        parser.add_argument("--json", action="store_true", help="write JSON")

    def run(self, args: Namespace, host: PluginHost) -> int:
        """Return 1 when something keeps engines from running."""
        from octavo.cli.findings import examine

        terminal = Terminal()
        with terminal.working("looking"):
            findings = examine(host)
        if args.json:
            lines = [dataclasses.asdict(finding) for finding in findings]
            sys.stdout.write(json.dumps(lines, indent=2) + "\n")
        else:
            width = max(len(finding.subject) for finding in findings)
            for finding in findings:
                sign, style = SIGNS[finding.verdict]
                terminal.write(sign, style)
                terminal.write(f"  {finding.subject:<{width}}  {finding.found}\n")
                if finding.advice:
                    terminal.write(f"{'':<{width + 6}}{finding.advice}\n", style)
        return 1 if any(finding.verdict == "bad" for finding in findings) else 0
