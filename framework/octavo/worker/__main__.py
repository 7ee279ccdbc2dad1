"""``python -m octavo.worker``: how an executor of several ranks starts each of them."""

from __future__ import annotations

import argparse
import mmap
import os
import signal
import sys
import threading
from multiprocessing.connection import Connection

from octavo.observability.logs import ENGINE_FORMAT, configure_logging
from octavo.worker.process import serve


def main() -> int:
    """Run a rank for the engine at the other end of a socket."""
    parser = argparse.ArgumentParser(prog="python -m octavo.worker", description=main.__doc__)
    parser.add_argument("--socket", required=True, type=int, help="an inherited file descriptor")
    parser.add_argument("--memory", required=True, type=int, help="that of what ranks share")
    arguments = parser.parse_args()
    # Service managers send it to all processes at once; this one ends with the engine's.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: None)
    threading.Thread(target=_end_with_engine, daemon=True).start()
    configure_logging(default="WARNING", form=ENGINE_FORMAT)
    return serve(Connection(arguments.socket), mmap.mmap(arguments.memory, 0))


def _end_with_engine() -> None:
    """Standard input ends where the engine's process does, whatever this one waits for."""
    while os.read(sys.stdin.fileno(), 1):
        pass
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
