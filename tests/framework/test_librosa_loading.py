"""librosa is imported where a model hears, when that is loaded, and nowhere else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tiny_whisper import make_tiny_whisper

HEAVY = """
import sys

def heavy():
    return {name for name in sys.modules if name.split(".")[0] in ("librosa", "numba", "scipy")}
"""


def python(code: str, *arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", HEAVY + code, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_decoders_are_loaded_for_what_requests_may_have_and_sounds_then_import_nothing() -> None:
    python(
        """
import numpy as np
from octavo.config.media import MediaConfig
from octavo.multimodal.reader import MediaReader
from octavo_registry import PluginHost

def reader(**limits):
    return MediaReader(PluginHost.discover(), MediaConfig(limit_mm_per_prompt=limits))

reader().load(["image", "video", "smell"])
reader(audio=0).load(["audio"])
assert not heavy(), heavy()
listening = reader()
listening.load(["audio"])
loaded = heavy()
assert {"librosa.core.audio", "numba"} <= loaded
given = listening.split({"audio": (np.zeros((2, 4800), np.float32), 48_000)})
(item,) = listening.read_blocking(given, {"audio": {"rate": 16_000}})
assert len(item.value.samples) == 1600
assert heavy() == loaded, heavy() - loaded
"""
    )


@pytest.mark.slow
def test_only_a_model_that_hears_has_it_and_no_request_waits_for_it(tmp_path: Path) -> None:
    make_tiny_whisper(tmp_path)
    python(
        """
import numpy as np
from octavo import LLM, SamplingParams
from octavo.errors import BadRequestError

options = {"num_threads": 1, "kv_cache_memory_gib": 0.05, "dtype": "float32"}
short = SamplingParams(max_tokens=1)
sound = {"audio": (np.zeros(14_400, np.float32), 48_000)}
with LLM("octavo/tiny", **options) as llm:
    llm.generate("hello", short, use_tqdm=False)
    try:
        llm.generate({"prompt": "hello", "multi_modal_data": sound}, short, use_tqdm=False)
    except BadRequestError as error:
        assert "takes no audio" in str(error)
    else:
        raise AssertionError
    assert "numba" not in sys.modules
with LLM(sys.argv[1], engine_process=False, **options) as llm:
    loaded = heavy()
    assert {"librosa.core.audio", "librosa.filters"} <= loaded
    prompt = {"prompt_token_ids": [256], "multi_modal_data": sound}
    llm.generate(prompt, short, use_tqdm=False)
    assert heavy() == loaded, heavy() - loaded
""",
        str(tmp_path),
    )


def test_without_a_folder_for_what_numba_compiles_the_error_says_what_to_set(tmp_path) -> None:
    """``__pycache__`` as a file, and a home that is none, keep numba from writing anywhere."""
    compiled = tmp_path / "compiled.py"
    compiled.write_text("import numba\n@numba.njit(cache=True)\ndef f(): pass\n")
    (tmp_path / "__pycache__").touch()
    (tmp_path / "home").touch()
    python(
        """
import os
os.environ.pop("NUMBA_CACHE_DIR", None)
os.environ.update(HOME=sys.argv[1] + "/home/none", XDG_CACHE_HOME=sys.argv[1] + "/home/none")
sys.path.insert(0, sys.argv[1])
from octavo.errors import ConfigError
from octavo.multimodal.librosa_loading import loading_librosa
try:
    with loading_librosa():
        import compiled
except ConfigError as error:
    assert "set NUMBA_CACHE_DIR" in str(error)
else:
    raise AssertionError
""",
        str(tmp_path),
    )
