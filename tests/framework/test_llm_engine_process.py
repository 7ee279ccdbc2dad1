"""``LLM`` and the real engine in a process of its own."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM, SamplingParams
from octavo.config import EngineConfig, ModelConfig
from octavo.engine.process_client import ProcessClient
from octavo.errors import EngineDeadError, ManifestMismatchError, ModelError, PluginError
from octavo.testing.random_model import make_random_model
from octavo_registry import PluginHost

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
SMALL: dict[str, Any] = {
    "num_blocks": 256,
    "max_num_seqs": 16,
    "max_num_batched_tokens": 64,
    "num_threads": 1,
}

PLUGIN = """
from octavo_registry import hookimpl
OCTAVO_API = "1"

@hookimpl
def register_models(models):
    models.add("RenamedForCausalLM", "octavo_plugins.models.llama.model:Llama")
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_random_model(tmp_path_factory.mktemp("model"), vocab_size=320)


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    with LLM(folder, engine_process=True, **SMALL) as llm:
        yield llm


def test_the_tokens_are_those_of_an_engine_in_this_process(llm: LLM, folder: Path) -> None:
    texts = ["The capital of France", "A book begins"]
    params = SamplingParams(temperature=0.8, seed=3, n=2, max_tokens=10, logprobs=2)
    there = llm.generate(texts, params, use_tqdm=False)
    with LLM(folder, **SMALL) as here_llm:
        here = here_llm.generate(texts, params, use_tqdm=False)
    for a, b in zip(there, here, strict=True):
        assert [c.token_ids for c in a.outputs] == [c.token_ids for c in b.outputs]
        assert [c.logprobs for c in a.outputs] == [c.logprobs for c in b.outputs]


def test_a_reset_crosses_to_the_engine(llm: LLM) -> None:
    assert llm.reset_prefix_cache() is True


def test_ctrl_c_leaves_the_engine_idle_and_alive(llm: LLM) -> None:
    long = SamplingParams(max_tokens=900, ignore_eos=True)
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["a", "b"], long, use_tqdm=False)
    stats = llm._front.client.call("stats")
    assert stats["num_running"] == stats["num_waiting"] == 0
    assert len(llm.generate("a", GREEDY, use_tqdm=False)[0].outputs[0].token_ids) == 12


def test_a_killed_engine_ends_generate_at_once(folder: Path) -> None:
    with LLM(folder, engine_process=True, **SMALL) as llm:
        client = llm._front.client
        assert isinstance(client, ProcessClient)
        killed: list[float] = []

        def kill() -> None:
            killed.append(time.monotonic())
            os.kill(client.pid, signal.SIGKILL)

        threading.Timer(0.3, kill).start()
        with pytest.raises(EngineDeadError, match="was killed by SIGKILL"):
            llm.generate(["a"] * 16, SamplingParams(max_tokens=900, ignore_eos=True))
        assert time.monotonic() - killed[0] < 10
        with pytest.raises(EngineDeadError):
            llm.generate("a", GREEDY)


def test_a_model_that_cannot_be_loaded_is_a_model_error_here(tmp_path: Path) -> None:
    folder = make_random_model(tmp_path, vocab_size=320)
    (folder / "model.safetensors").write_bytes(b"\x00" * 16)
    with pytest.raises(ModelError, match=r"model\.safetensors"):
        LLM(folder, engine_process=True, **SMALL)


def test_plugins_that_differ_are_refused_by_name(folder: Path) -> None:
    manifest = PluginHost.discover().manifest()
    first, *others = manifest.plugins
    other = replace(manifest, plugins=(replace(first, version="0.0.7"), *others))
    config = EngineConfig(model=ModelConfig(model=str(folder)))
    with pytest.raises(ManifestMismatchError, match=rf"{first.name}: version '0\.0\.7' there"):
        ProcessClient(config, other)


def test_a_plugin_by_import_path_is_loaded_there_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "renamed_llama.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(tmp_path)
    folder = make_random_model(
        tmp_path / "model", architecture="RenamedForCausalLM", vocab_size=320
    )
    with LLM(folder, engine_process=True, plugins=["renamed_llama"], **SMALL) as llm:
        assert len(llm.generate("a", GREEDY, use_tqdm=False)[0].outputs[0].token_ids) == 12


def test_a_plugin_object_works_in_this_process_only(folder: Path) -> None:
    class Plugin:
        OCTAVO_API = "1"

    with LLM(folder, plugins=[Plugin()], **SMALL) as llm:
        llm.generate("a", GREEDY, use_tqdm=False)
    with pytest.raises(PluginError, match="import path"):
        LLM(folder, plugins=[Plugin()], engine_process=True, **SMALL)
