"""What no model can be made of is refused by name and value, before anything is built."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from octavo.config import ModelConfig
from octavo.errors import ModelError
from octavo.model_folder import ModelFolder, open_model
from octavo.model_folder.entries import RULES, Entries, check_entries
from octavo.testing.random_model import make_random_model
from octavo_registry import PluginHost

ROPE = "must be a number above 0, or null"
SIZE = r"must be a positive integer below 2\*\*31"


@pytest.fixture(scope="module")
def host() -> PluginHost:
    return PluginHost.discover()


def open_with(host: PluginHost, folder: Path, **entries: Any) -> ModelFolder:
    make_random_model(folder)
    config = json.loads((folder / "config.json").read_bytes())
    (folder / "config.json").write_text(json.dumps({**config, **entries}))
    return open_model(ModelConfig(model=str(folder)), host)


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        ({"head_dim": 0}, f"head_dim=0 {SIZE}, or null"),
        ({"head_dim": 10**20}, f"head_dim=1{'0' * 20} {SIZE}"),
        ({"hidden_size": 0}, f"hidden_size=0 {SIZE}$"),
        ({"hidden_size": "32"}, f"hidden_size='32' {SIZE}"),
        ({"hidden_size": None}, f"hidden_size=None {SIZE}"),
        ({"hidden_size": True}, f"hidden_size=True {SIZE}"),
        ({"hidden_size": 64.0}, f"hidden_size=64.0 {SIZE}"),
        ({"hidden_size": []}, rf"hidden_size=\[\] {SIZE}"),
        ({"num_hidden_layers": -1}, f"num_hidden_layers=-1 {SIZE}"),
        ({"num_key_value_heads": [2, 0]}, rf"num_key_value_heads=\[2, 0\] {SIZE}"),
        ({"num_experts": -1}, "num_experts=-1 must be an integer from 0, or null"),
        ({"rope_theta": 0}, f"rope_theta=0 {ROPE}"),
        ({"rope_theta": -1e4}, f"rope_theta=-10000.0 {ROPE}"),
        ({"rope_theta": float("nan")}, f"rope_theta=nan {ROPE}"),
        ({"rope_parameters": {"rope_theta": "1e4"}}, f"rope_theta='1e4' {ROPE}"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 0}}}, f"rope_theta=0 {ROPE}"),
        ({"text_config": {"rope_theta": 0}}, f"rope_theta=0 {ROPE}"),
        ({"sliding_window": 0}, f"sliding_window=0 {SIZE}, or null"),
        ({"rms_norm_eps": None}, "rms_norm_eps=None must be a number from 0"),
        ({"rms_norm_eps": -1}, "rms_norm_eps=-1 must be a number from 0"),
        ({"rms_norm_eps": float("inf")}, "rms_norm_eps=inf must be a number from 0"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings='no' must be true or false"),
        ({"vocab_size": 10**13}, f"vocab_size=1{'0' * 13} {SIZE}"),
    ],
)
def test_an_absurd_value_is_refused_by_name(host, tmp_path, entries, reason) -> None:
    with pytest.raises(ModelError, match=f"{tmp_path / 'config.json'}: {reason}"):
        open_with(host, tmp_path, **entries)


@pytest.mark.parametrize(
    "entries",
    [
        {"head_dim": None, "num_key_value_heads": None, "sliding_window": None, "rope_theta": None},
        {"intermediate_size": [160, 80], "num_experts": 0, "rms_norm_eps": 0},
        {"rope_scaling": None, "vision_config": {"hidden_size": "wide"}},
        {"use_sliding_window": False, "sliding_window": 0},
        {"rms_norm_eps": None, "layer_norm_eps": 1e-5},
    ],
    ids=[
        "null for what is optional", "a value a layer, none", "what is not the language model's",
        "a window that is switched off", "a norm of another kind",
    ],
)  # fmt: skip
def test_what_some_architecture_means_by_it_passes(host, tmp_path, entries) -> None:
    open_with(host, tmp_path, **entries)


def test_no_two_rules_are_about_one_entry() -> None:
    names = [name for rule in RULES for name in rule.names]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(("name", "how"), [("missing", "lacks"), ("null", "has null for")])
def test_an_entry_that_a_model_cannot_do_without_is_named(name, how) -> None:
    entries = Entries(Path("x/config.json"), {"null": None, "zero": 0})
    assert entries["zero"] == 0
    assert entries.get(name, None) is None
    with pytest.raises(ModelError, match=f"x/config.json {how} '{name}', which the architecture"):
        entries[name]


@pytest.mark.slow
def test_what_transformers_itself_makes_passes() -> None:
    num_made = 0
    for model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        try:
            config = transformers.CONFIG_MAPPING[model_type]().to_dict()
        except Exception:  # its defaults do not fit one another
            continue
        check_entries(Path(model_type), {**config, **(config.get("text_config") or {})})
        num_made += 1
    assert num_made > 100
