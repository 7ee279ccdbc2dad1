"""``python -m octavo.engine --connect ADDRESS``: how an engine process starts."""

from __future__ import annotations

import argparse
import signal
import sys

from octavo.engine.server import serve
from octavo.observability.function_trace import trace_functions
from octavo.observability.logs import ENGINE_FORMAT, configure_logging


def main() -> int:
    """Run an engine process for the client that waits at the address."""
    parser = argparse.ArgumentParser(prog="python -m octavo.engine", description=main.__doc__)
    parser.add_argument("--connect", required=True, metavar="ADDRESS", help="a ZeroMQ address")
    address = parser.parse_args().connect
    # Service managers send it to all processes at once; this one ends when its parent has drained.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: None)
    trace_functions()
    configure_logging(default="WARNING", form=ENGINE_FORMAT)
    return serve(address)


if __name__ == "__main__":
    sys.exit(main())
