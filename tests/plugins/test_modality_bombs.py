"""Bombs of all kinds, in a process of its own: refused, within a second, in no memory."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys

import media_bombs

CHILD = """
import base64, json, resource, sys, time
from octavo.config.media import MediaConfig
from octavo.multimodal.errors import BadMediaError
from octavo.multimodal.reader import MediaReader
from octavo_registry import PluginHost

reader = MediaReader(PluginHost.discover(), MediaConfig())
given = json.load(sys.stdin)
for modality, data in given["good"]:
    reader.read_blocking(reader.split({modality: base64.b64decode(data)}))
told = {}
for name, modality, data in given["bombs"] * 4:  # malloc keeps more each time, if anything
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    try:
        bomb = reader.split({modality: base64.b64decode(data)})
        reader.read_blocking(bomb, {"video": {"num_frames": 4}})
        error = None
    except BadMediaError as caught:
        error = str(caught)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    told.setdefault(name, []).append((error, time.process_time() - began, grown / 1024))
print(json.dumps(told))
"""


def test_a_bomb_is_refused_within_a_second_and_takes_no_memory() -> None:
    """The bombs are made here: making them takes memory that would hide what they take."""
    given = {
        "good": [(kind, base64.b64encode(data).decode()) for kind, data in media_bombs.good()],
        "bombs": [
            (name, kind, base64.b64encode(data).decode())
            for name, (kind, data) in media_bombs.bombs()
        ],
    }
    done = subprocess.run(
        [sys.executable, "-c", CHILD],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert len(told) >= 30
    for name, times in told.items():
        for error, cpu_seconds, grown_mib in times:
            assert error is not None, name
            assert cpu_seconds < 1, name
            assert grown_mib < 16, name
