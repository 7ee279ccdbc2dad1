"""``python -m octavo.engine --connect ADDRESS``: how an engine process starts."""

from __future__ import annotations

import argparse
import logging
import sys

from octavo.engine.server import serve


def main() -> int:
    """Run an engine process for the client that waits at the address."""
    parser = argparse.ArgumentParser(prog="python -m octavo.engine", description=main.__doc__)
    parser.add_argument("--connect", required=True, metavar="ADDRESS", help="a ZeroMQ address")
    logging.basicConfig(format="%(asctime)s %(levelname)s engine: %(message)s")
    return serve(parser.parse_args().connect)


if __name__ == "__main__":
    sys.exit(main())
