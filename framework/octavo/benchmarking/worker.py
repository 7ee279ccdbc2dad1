"""One process of a load: ``python -m octavo.benchmarking.worker``, spoken to through pipes."""

from __future__ import annotations

import gc
import sys
import time

import msgspec
import uvloop

from octavo.benchmarking.load import LoadClient
from octavo.benchmarking.processes import Outcome, Progress, Share, get, put
from octavo.benchmarking.records import Record

TELL_SECONDS = 0.2


def main() -> None:
    """Read a share, say that it is ready, wait for the time of the start, and answer."""
    share = msgspec.msgpack.decode(get(sys.stdin.buffer), type=Share)
    put(sys.stdout.buffer, b"ready")
    begin = msgspec.msgpack.decode(get(sys.stdin.buffer), type=float)
    teller = Teller()
    load = LoadClient(share.address, share.max_concurrency, teller.count)
    gc.freeze()
    gc.disable()  # a pause of it would be taken for the server's; records have no cycles
    began = time.process_time()
    records = uvloop.run(load.run(share.requests, begin))
    outcome = Outcome(records, time.process_time() - began)
    teller.tell()
    put(sys.stdout.buffer, msgspec.msgpack.encode(outcome))


class Teller:
    """Tells the parent now and then what has ended."""

    def __init__(self) -> None:
        self._untold = Progress()
        self._told_seconds = 0.0

    def count(self, record: Record) -> None:
        """Count a request that has ended."""
        self._untold.num_requests += 1
        self._untold.num_tokens += record.num_output_tokens
        if time.monotonic() - self._told_seconds > TELL_SECONDS:
            self.tell()

    def tell(self) -> None:
        """Write what was not told yet."""
        put(sys.stdout.buffer, msgspec.msgpack.encode(self._untold))
        self._untold = Progress()
        self._told_seconds = time.monotonic()


if __name__ == "__main__":
    main()
