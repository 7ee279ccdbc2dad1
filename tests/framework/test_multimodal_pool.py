"""Calls in threads: how many may wait, and what they hold."""

from __future__ import annotations

import threading
import weakref
from functools import partial

import pytest

from octavo.errors import QueueFullError
from octavo.multimodal.pool import WorkPool


class Held:
    """What a call works on."""


def test_too_much_that_waits_is_refused_and_not_kept() -> None:
    pool, release = WorkPool("testing", num_threads=1, max_calls=3), threading.Event()
    futures = [pool.submit(release.wait) for _ in range(3)]
    with pytest.raises(QueueFullError, match="too much testing waits"):
        pool.submit(release.wait)
    release.set()
    assert all(future.result(20) for future in futures)
    assert pool.submit(lambda: 7).result(20) == 7
    pool.close()


def test_what_a_cancelled_call_holds_is_let_go_at_once() -> None:
    pool, release = WorkPool("testing", num_threads=1, max_calls=2), threading.Event()
    pool.submit(release.wait)
    held = Held()
    call = partial(repr, held)
    seen = weakref.ref(held)
    waiting = pool.submit(call)
    del call, held
    assert seen() is not None
    assert waiting.cancel()
    assert seen() is None
    release.set()
    pool.close()
