"""``octavo bench serve | throughput | latency | startup``."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from pathlib import Path
from typing import Any

from octavo.benchmarking.offline import LatencyBench, ThroughputBench
from octavo.benchmarking.serve import ServeBench
from octavo.benchmarking.startup import StartupBench
from octavo.benchmarking.summary import Spread, parse_goodput
from octavo.cli.bench_report import BUSY_SHARE, rates, spreads
from octavo.cli.engine_flags import add_engine_flags, engine_keywords
from octavo.cli.fields import add_fields, given_fields
from octavo.cli.terminal import Terminal
from octavo.errors import ConfigError
from octavo_registry import PluginHost


class BenchCommand:
    """Measures a server from outside, or an engine."""

    def configure(self, parser: ArgumentParser) -> None:
        """Declare the four benchmarks."""
        kinds = parser.add_subparsers(dest="kind", required=True, metavar="KIND")
        serve = kinds.add_parser("serve", help="load an OpenAI-compatible server")
        serve.add_argument("--url", required=True, help="such as http://localhost:8000")
        serve.add_argument("--api-key", help="default: the environment's OCTAVO_API_KEY")
        add_fields(serve, ServeBench, title="load")
        serve.add_argument(
            "--goodput",
            nargs="+",
            default=[],
            metavar="MEASURE:MS",
            help="count the requests within limits, such as ttft:200 itl:50; also tpot, e2e",
        )
        serve.add_argument("--plot", type=Path, metavar="FILE.svg", help="draw a picture")
        _add_output(serve)
        for name, kind, text in (
            ("throughput", ThroughputBench, "many requests at once in an engine of this process"),
            ("latency", LatencyBench, "one batch again and again"),
            ("startup", StartupBench, "from exec to the first token, warm and cold"),
        ):
            offline = kinds.add_parser(name, help=text)
            offline.usage = f"octavo bench {name} MODEL [options]"
            add_engine_flags(offline)
            add_fields(offline, kind, title="benchmark")
            _add_output(offline)

    def run(self, args: Namespace, host: PluginHost) -> int:
        """Return 1 when a request failed."""
        terminal = Terminal()
        match args.kind:
            case "serve":
                return _serve(args, terminal)
            case "startup":
                return _startup(args, host, terminal)
            case _:
                return _offline(args, host, terminal)


def _add_output(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--output-json", type=Path, metavar="FILE", help='write all figures; "-" is standard output'
    )


def _serve(args: Namespace, terminal: Terminal) -> int:
    from octavo.benchmarking.serve import run_serve_bench
    from octavo.client import parse_address

    bench = ServeBench(**given_fields(args, ServeBench))
    goodput = parse_goodput(args.goodput)
    address = parse_address(args.url, args.api_key)
    _check_files(args.output_json, args.plot)
    with terminal.working(f"{bench.num_prompts} requests to {address}"):
        result = run_serve_bench(address, bench, goodput)
    _write_json(args.output_json, result.as_dict())
    if args.plot is not None:
        from octavo.benchmarking.picture import draw

        args.plot.write_text(draw(result.records, f"{result.model} at {address}"))
    if str(args.output_json) != "-":
        summary = result.summary
        terminal.rows(rates(summary, result.num_processes, result.cpu_share))
        terminal.write("\n")
        terminal.rows(
            spreads(
                {
                    "ttft": summary.ttft_ms,
                    "tpot": summary.tpot_ms,
                    "itl": summary.itl_ms,
                    "e2e": summary.e2e_ms,
                }
            )
        )
        for error, count in summary.errors.items():
            terminal.write(f"{count} failed: {error}\n", "red")
    if result.cpu_share > BUSY_SHARE:
        sys.stderr.write(
            f"octavo: the client used {result.cpu_share:.0%} of a core in a process and may be "
            f"what was measured; give --processes {2 * result.num_processes}\n"
        )
    return 1 if result.summary.failed else 0


def _offline(args: Namespace, host: PluginHost, terminal: Terminal) -> int:
    kind = ThroughputBench if args.kind == "throughput" else LatencyBench
    bench = kind(**given_fields(args, kind))
    _check_files(args.output_json)
    from octavo.benchmarking.offline import latency, throughput
    from octavo.llm import LLM

    with terminal.working(f"loading {args.model}"):
        llm = LLM(**engine_keywords(args, host))
    with llm, terminal.working("measuring"):
        if isinstance(bench, ThroughputBench):
            figures = throughput(llm, bench)
        else:
            figures = latency(llm, bench)
    _show(args, bench, figures, terminal)
    return 0


def _startup(args: Namespace, host: PluginHost, terminal: Terminal) -> int:
    from octavo.benchmarking.startup import startup

    bench = StartupBench(**given_fields(args, StartupBench))
    _check_files(args.output_json)
    with terminal.working(f"starting {args.model}"):
        figures = startup(engine_keywords(args, host), bench)
    _show(args, bench, figures, terminal)
    return 0


def _show(args: Namespace, bench: Any, figures: dict[str, Any], terminal: Terminal) -> None:
    _write_json(args.output_json, {"model": args.model, "options": asdict(bench), **figures})
    if str(args.output_json) == "-":
        return
    numbers = [
        (name.replace("_", " "), f"{value:,.2f}" if isinstance(value, float) else str(value))
        for name, value in figures.items()
        if isinstance(value, (int, float))
    ]
    if numbers:
        terminal.rows(numbers)
    named = {name: value for name, value in figures.items() if isinstance(value, Spread)}
    if named:
        terminal.rows(spreads(named))


def _check_files(*paths: Path | None) -> None:
    """A folder that is not there is known before the measurement, not after it."""
    for path in paths:
        if path is not None and str(path) != "-" and not path.absolute().parent.is_dir():
            raise ConfigError(f"{path}: there is no folder {path.absolute().parent}")


def _write_json(path: Path | None, value: dict[str, Any]) -> None:
    if path is None:
        return
    text = json.dumps(value, indent=2, default=asdict) + "\n"
    if str(path) == "-":
        sys.stdout.write(text)
    else:
        path.write_text(text)
