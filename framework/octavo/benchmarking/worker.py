"""One process of a load: ``python -m octavo.benchmarking.worker``, spoken to through pipes."""

from __future__ import annotations

import gc
import sys
import time

import msgspec
import uvloop

from octavo.benchmarking.load import Load
from octavo.benchmarking.processes import Outcome, Share, get, put


def main() -> None:
    """Read a share, say that it is ready, wait for the time of the start, and answer."""
    share = msgspec.msgpack.decode(get(sys.stdin.buffer), type=Share)
    put(sys.stdout.buffer, b"ready")
    begin = msgspec.msgpack.decode(get(sys.stdin.buffer), type=float)
    load = Load(share.address, share.max_concurrency)
    gc.freeze()
    gc.disable()  # a pause of it would be taken for the server's; records have no cycles
    began = time.process_time()
    records = uvloop.run(load.run(share.planned, begin))
    outcome = Outcome(records, time.process_time() - began)
    put(sys.stdout.buffer, msgspec.msgpack.encode(outcome))


if __name__ == "__main__":
    main()
