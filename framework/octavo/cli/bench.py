"""``octavo bench serve | throughput | latency | startup``."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.benchmarking.machine import describe_machine
from octavo.benchmarking.offline import LatencyBench, ThroughputBench
from octavo.benchmarking.serve import ServeBench
from octavo.benchmarking.startup import StartupBench
from octavo.benchmarking.summary import Spread, parse_goodput
from octavo.benchmarking.workload import Lengths
from octavo.cli.bench_report import BUSY_SHARE, rates, spreads
from octavo.cli.engine_flags import add_engine_flags, engine_keywords
from octavo.cli.fields import add_fields, given_fields
from octavo.cli.terminal import Terminal
from octavo.errors import ConfigError
from octavo_registry import PluginHost

if TYPE_CHECKING:
    from octavo.frontend.llm import LLM


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
            case "latency":
                return _latency(args, host, terminal)
            case _:
                return _throughput(args, host, terminal)


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
    result = run_serve_bench(address, bench, goodput, shown=terminal.tells_people)
    _write_json(args.output_json, result.as_dict())
    if args.plot is not None:
        from octavo.benchmarking.picture import draw

        args.plot.write_text(draw(result.records, f"{result.model} at {address}"))
    if str(args.output_json) != "-":
        summary = result.summary
        terminal.write(f"{result.model} at {address}\n{bench}\n\n")
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


def _throughput(args: Namespace, host: PluginHost, terminal: Terminal) -> int:
    bench = ThroughputBench(**given_fields(args, ThroughputBench))
    lengths = bench.lengths() if bench.prompts is None else None
    options = _begin(args, host, terminal, bench, lengths)
    from octavo.benchmarking.offline import throughput

    with _loaded(options, terminal) as llm:
        figures = throughput(llm, bench, shown=terminal.tells_people)
        _end(args, bench, {"machine": describe_machine(), **figures}, terminal)
    return 0


def _latency(args: Namespace, host: PluginHost, terminal: Terminal) -> int:
    bench = LatencyBench(**given_fields(args, LatencyBench))
    options = _begin(args, host, terminal, bench, bench.lengths())
    from octavo.benchmarking.offline import latency

    with _loaded(options, terminal) as llm:
        with terminal.working("measuring") as tell:
            figures = latency(llm, bench, tell)
        _end(args, bench, {"machine": describe_machine(), **figures}, terminal)
    return 0


def _startup(args: Namespace, host: PluginHost, terminal: Terminal) -> int:
    bench = StartupBench(**given_fields(args, StartupBench))
    options = _begin(args, host, terminal, bench, None)
    from octavo.benchmarking.startup import startup

    with terminal.working("starting") as tell:
        figures = startup(options, bench, tell)
    _end(args, bench, figures, terminal)
    return 0


def _begin(
    args: Namespace, host: PluginHost, terminal: Terminal, bench: object, lengths: Lengths | None
) -> dict[str, Any]:
    """Check all that can be without the weights, say what is measured; the engine's options."""
    from octavo.frontend.options import read_options
    from octavo.model_folder import open_model

    _check_files(args.output_json)
    options = engine_keywords(args, host)
    config = read_options(options, caller=f"octavo bench {args.kind}").config
    with terminal.working(f"looking for {args.model}"):
        folder = open_model(config.model, host)
    if lengths is not None and lengths.largest() > folder.max_model_len:
        raise ConfigError(
            f"{lengths} is {lengths.largest():,} tokens at most, more than the "
            f"{folder.max_model_len:,} that {args.model} takes; lower --input-len or --output-len"
        )
    if str(args.output_json) != "-":
        terminal.write(f"{args.model}, {folder.architecture} in {folder.dtype}\n{bench}\n\n")
    return options


@contextmanager
def _loaded(options: dict[str, Any], terminal: Terminal) -> Iterator[LLM]:
    from octavo.frontend.llm import LLM

    with terminal.working(f"loading {options['model']}"):
        llm = LLM(**options, engine_process=False)
    with llm:
        yield llm


def _end(args: Namespace, bench: Any, figures: dict[str, Any], terminal: Terminal) -> None:
    _write_json(args.output_json, {"model": args.model, "options": asdict(bench), **figures})
    if str(args.output_json) == "-":
        return
    numbers = [
        (name.replace("_", " "), f"{value:,.2f}" if isinstance(value, float) else f"{value:,}")
        for name, value in figures.items()
        if isinstance(value, (int, float))
    ]
    if numbers:
        terminal.rows(numbers)
    named = {name: value for name, value in figures.items() if isinstance(value, Spread)}
    if named:
        terminal.rows(spreads(named))
    machine = figures["machine"]
    terminal.write(
        f"\non {machine['device']}; Octavo {machine['octavo']}, torch {machine['torch']}, "
        f"Python {machine['python']}\n"
    )


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
