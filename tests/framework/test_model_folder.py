import json
from pathlib import Path
from typing import Any

import pytest

from octavo.config import ModelConfig
from octavo.errors import ConfigError, ModelError, OctavoError
from octavo.model_folder import ModelFolder, open_model
from octavo.testing.random_model import make_random_model
from octavo_registry import ModelCapabilities, ModelPart, PluginHost


@pytest.fixture
def host() -> PluginHost:
    host = PluginHost()
    host.sources.add("local", "octavo_plugins.sources.local.source:LocalSource")
    host.models.add("LlamaForCausalLM", "nowhere:Llama")
    embedding = ModelCapabilities(tasks=("embed", "score"), quantizations=("awq", "gptq"))
    host.models.add("EmbedModel", "nowhere:Embed", capabilities=embedding)
    host.quantizations.add("awq", "nowhere:Awq")
    return host


def open_with(
    host: PluginHost, folder: Path, *, options: dict[str, Any] | None = None, **config: Any
) -> ModelFolder:
    settings = {"architectures": ["LlamaForCausalLM"], "vocab_size": 100, **config}
    settings.setdefault("max_position_embeddings", 64)
    (folder / "config.json").write_text(
        json.dumps({key: value for key, value in settings.items() if value != "absent"})
    )
    return open_model(ModelConfig(model=str(folder), **(options or {})), host)


def test_a_complete_folder_is_resolved(host: PluginHost, tmp_path: Path) -> None:
    folder = open_model(ModelConfig(model=str(make_random_model(tmp_path))), host)
    assert folder.path == tmp_path
    assert folder.architecture == "LlamaForCausalLM"
    assert (folder.task, folder.dtype, folder.quantization) == ("generate", "float32", None)
    assert (folder.max_model_len, folder.vocab_size, folder.eos_token_ids) == (1024, 512, (2,))
    assert folder.generation_config["eos_token_id"] == 2


def test_a_part_of_another_model_has_its_settings_but_for_those_given(
    host: PluginHost, tmp_path: Path
) -> None:
    part = ModelPart(config="text_config", model="text_model_id", prefixes=(("", "language."),))
    parts = ModelCapabilities(parts=(part,))
    host.models.add("EarModel", "nowhere:Ear", capabilities=parts)
    text = tmp_path / "text"
    text.mkdir()
    (text / "config.json").write_text('{"vocab_size": 7, "max_position_embeddings": 32}')
    ear: dict[str, Any] = {"architectures": ["EarModel"], "vocab_size": "absent"}
    own = {"text_config": {"vocab_size": 9}}
    folder = open_with(host, tmp_path, **ear, **own, text_model_id=str(text))
    assert (folder.vocab_size, folder.max_model_len) == (9, 32)
    assert folder.parts == ((text, part),)
    with pytest.raises(ModelError, match="text_model_id=5 must be the name of a model"):
        open_with(host, tmp_path, **ear, text_model_id=5)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "has no config.json; it is not a model's folder"),
        (b"{", "config.json is no JSON"),
        (b"\xff\xff", "config.json is no JSON"),
        (b"[" * 100_000, "config.json is no JSON"),
        (b"[]", "config.json is no JSON object but list"),
    ],
)
def test_a_damaged_config_is_one_line_that_names_it(
    host: PluginHost, tmp_path: Path, content: bytes | None, reason: str
) -> None:
    if content is not None:
        (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ModelError, match=reason) as raised:
        open_model(ModelConfig(model=str(tmp_path)), host)
    assert "\n" not in str(raised.value)
    assert str(tmp_path) in str(raised.value)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"architectures": ["LamaForCausalLM"]}, r"'LamaForCausalLM'; close: \['LlamaForCausalLM'"),
        ({"architectures": "absent"}, "architectures=None names no model class"),
        ({"architectures": []}, r"architectures=\[\] names no model class"),
        ({"architectures": "Llama"}, "architectures='Llama' names no model class"),
        ({"vocab_size": "absent"}, "vocab_size=None must be a positive integer"),
        ({"vocab_size": True}, "vocab_size=True must be a positive integer"),
        ({"max_position_embeddings": "absent"}, "gives no context length .* pass max_model_len"),
        ({"max_position_embeddings": "64"}, "max_position_embeddings='64' must be a positive"),
        ({"max_position_embeddings": -1}, "max_position_embeddings=-1 must be a positive"),
        ({"rope_scaling": 3}, "rope settings 3 are not an object"),
        ({"rope_parameters": [1]}, r"rope settings \[1\] are not an object"),
        ({"rope_scaling": {"type": "linear", "factor": "2"}}, "factor='2' must be a positive"),
        ({"eos_token_id": "</s>"}, "must be token ids"),
        ({"dtype": "float64"}, "dtype 'float64' cannot be computed in; pass dtype"),
        ({"text_config": 3}, "text_config=3 must be an object"),
    ],
)
def test_a_bad_entry_is_named_with_its_value(
    host: PluginHost, tmp_path: Path, config: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ModelError, match=reason):
        open_with(host, tmp_path, **config)


def test_a_name_that_no_source_knows_lists_the_sources(host: PluginHost) -> None:
    with pytest.raises(ModelError, match="no model 'nobody/nothing'; sources asked: local"):
        open_model(ModelConfig(model="nobody/nothing"), host)


def test_the_first_known_architecture_is_taken(host: PluginHost, tmp_path: Path) -> None:
    folder = open_with(host, tmp_path, architectures=["Unheard", "LlamaForCausalLM", "EmbedModel"])
    assert folder.architecture == "LlamaForCausalLM"


def test_overrides_replace_entries_and_reach_into_nested_configs(
    host: PluginHost, tmp_path: Path
) -> None:
    overrides = {
        "architectures": ["LlamaForCausalLM"],
        "text_config": {"vocab_size": 7},
        "rope_scaling": {"type": "dynamic", "factor": 2.0},
        "brand_new": {"a": 1},
    }
    folder = open_with(
        host,
        tmp_path,
        options={"hf_overrides": overrides},
        architectures=["Unheard"],
        text_config={"vocab_size": 5, "max_position_embeddings": 32},
        rope_scaling={"type": "linear", "extra": 1},
    )
    assert folder.config["text_config"] == {"vocab_size": 7, "max_position_embeddings": 32}
    assert folder.config["rope_scaling"] == {"type": "dynamic", "factor": 2.0}
    assert folder.config["brand_new"] == {"a": 1}
    assert (folder.vocab_size, folder.max_model_len) == (7, 32)


@pytest.mark.parametrize(
    ("overrides", "rope"),
    [
        ({"rope_theta": 9.0}, {"rope_theta": 9.0, "rope_type": "linear", "factor": 4.0}),
        ({"rope_scaling": None}, {"rope_theta": 5.0}),
        (
            {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
            {"rope_theta": 5.0, "rope_type": "dynamic", "factor": 2.0},
        ),
        ({"rope_parameters": {"rope_theta": 1.0}, "rope_theta": 9.0}, {"rope_theta": 1.0}),
        ({}, {"rope_theta": 5.0, "rope_type": "linear", "factor": 4.0}),
    ],
)
def test_overrides_by_older_names_are_not_hidden_by_newer_entries(
    host: PluginHost, tmp_path: Path, overrides: dict[str, Any], rope: dict[str, Any]
) -> None:
    options = {"hf_overrides": {**overrides, "torch_dtype": "bfloat16"}}
    stored = {"rope_theta": 5.0, "rope_type": "linear", "factor": 4.0}
    folder = open_with(host, tmp_path, options=options, rope_parameters=stored, dtype="float16")
    assert folder.config["rope_parameters"] == rope
    assert folder.dtype == "bfloat16"


@pytest.mark.parametrize(
    ("config", "limit"),
    [
        ({}, 64),
        ({"max_position_embeddings": "absent", "n_positions": 10}, 10),
        ({"seq_length": 32}, 32),
        ({"model_max_length": 128}, 128),
        ({"rope_scaling": {"type": "linear", "factor": 4}}, 256),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 1.5}}, 64),
        ({"model_type": "gemma3_text", "rope_scaling": {"rope_type": "linear", "factor": 8}}, 64),
        (
            {
                "model_type": "gemma3_text",
                "rope_parameters": {
                    "sliding_attention": {"rope_type": "default"},
                    "full_attention": {"rope_type": "linear", "factor": 8.0},
                },
            },
            64,
        ),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 64),
        ({"rope_scaling": {"type": "longrope", "factor": 8.0}}, 64),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}, 64),
        (
            {
                "rope_parameters": {
                    "rope_type": "yarn",
                    "factor": 4.0,
                    "original_max_position_embeddings": 16,
                }
            },
            64,
        ),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, 256),
        ({"rope_parameters": {"full": {"rope_type": "linear", "factor": 2}, "x": {}}}, 128),
    ],
)
def test_the_context_length_follows_names_and_rope_scaling(
    host: PluginHost, tmp_path: Path, config: dict[str, Any], limit: int
) -> None:
    assert open_with(host, tmp_path, **config).max_model_len == limit
    auto = {"max_model_len": "auto"}
    assert open_with(host, tmp_path, options=auto, **config).max_model_len == limit
    less = {"max_model_len": limit - 1}
    assert open_with(host, tmp_path, options=less, **config).max_model_len == limit - 1
    with pytest.raises(ConfigError, match=f"max_model_len={limit + 1} is above the {limit} tokens"):
        open_with(host, tmp_path, options={"max_model_len": limit + 1}, **config)


def test_a_length_above_the_limit_works_once_an_override_raises_it(
    host: PluginHost, tmp_path: Path
) -> None:
    scaling = {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}
    options = {"max_model_len": 128, "hf_overrides": scaling}
    assert open_with(host, tmp_path, options=options).max_model_len == 128


def test_a_given_length_serves_where_config_has_none(host: PluginHost, tmp_path: Path) -> None:
    options = {"max_model_len": 9}
    folder = open_with(host, tmp_path, options=options, max_position_embeddings="absent")
    assert folder.max_model_len == 9


@pytest.mark.parametrize(
    ("config", "asked", "dtype"),
    [
        ({"torch_dtype": "bfloat16"}, "auto", "bfloat16"),
        ({"dtype": "torch.float16"}, "auto", "float16"),
        ({"torch_dtype": "float32"}, "auto", "float32"),
        ({"torch_dtype": "float32"}, "bfloat16", "bfloat16"),
        ({"text_config": {"dtype": "bfloat16"}}, "auto", "bfloat16"),
        ({}, "auto", "float32"),
    ],
)
def test_auto_takes_the_dtype_that_config_names(
    host: PluginHost, tmp_path: Path, config: dict[str, Any], asked: str, dtype: str
) -> None:
    assert open_with(host, tmp_path, options={"dtype": asked}, **config).dtype == dtype


def test_auto_takes_the_dtype_of_the_weights_where_config_names_none(
    host: PluginHost, tmp_path: Path
) -> None:
    make_random_model(tmp_path, dtype="bfloat16")
    assert open_with(host, tmp_path).dtype == "bfloat16"


def test_end_of_sequence_ids_come_from_override_generation_config_and_config_in_this_order(
    host: PluginHost, tmp_path: Path
) -> None:
    assert open_with(host, tmp_path).eos_token_ids == ()
    assert open_with(host, tmp_path, eos_token_id=3).eos_token_ids == (3,)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [4, 5], "top_k": 7}')
    folder = open_with(host, tmp_path, eos_token_id=3)
    assert folder.eos_token_ids == (4, 5)
    assert folder.generation_config["top_k"] == 7
    options = {"hf_overrides": {"eos_token_id": 6}, "generation_config": "none"}
    folder = open_with(host, tmp_path, options=options, eos_token_id=3)
    assert folder.eos_token_ids == (6,)
    assert folder.generation_config == {}


def test_a_task_that_the_architecture_cannot_do_is_refused(
    host: PluginHost, tmp_path: Path
) -> None:
    assert open_with(host, tmp_path, architectures=["EmbedModel"]).task == "embed"
    options = {"task": "score"}
    assert open_with(host, tmp_path, options=options, architectures=["EmbedModel"]).task == "score"
    with pytest.raises(ConfigError, match="task='generate' is not among those of EmbedModel: embe"):
        open_with(host, tmp_path, options={"task": "generate"}, architectures=["EmbedModel"])


@pytest.mark.parametrize(
    ("architecture", "stored", "asked", "reason"),
    [
        (
            "LlamaForCausalLM",
            "awq",
            None,
            "'awq' does not work with LlamaForCausalLM; none is available yet",
        ),
        ("EmbedModel", "gptq", None, "'gptq' does not work with EmbedModel; what does: awq"),
        ("EmbedModel", None, "fp8", "'fp8' does not work with EmbedModel; what does: awq"),
        ("EmbedModel", "awq", "gptq", "quantization='gptq', but the weights are quantized as 'awq"),
    ],
)
def test_a_quantization_that_cannot_be_had_is_refused_by_name(
    host: PluginHost,
    tmp_path: Path,
    architecture: str,
    stored: str | None,
    asked: str | None,
    reason: str,
) -> None:
    config = {"quantization_config": {"quant_method": stored}} if stored else {}
    with pytest.raises(OctavoError, match=reason):
        open_with(
            host, tmp_path, options={"quantization": asked}, architectures=[architecture], **config
        )


def test_a_registered_quantization_is_taken_from_the_checkpoint_or_the_option(
    host: PluginHost, tmp_path: Path
) -> None:
    stored = {"quant_method": "awq", "bits": 4}
    folder = open_with(host, tmp_path, architectures=["EmbedModel"], quantization_config=stored)
    assert (folder.quantization, folder.quantization_config) == ("awq", stored)
    options = {"quantization": "awq"}
    folder = open_with(host, tmp_path, options=options, architectures=["EmbedModel"])
    assert (folder.quantization, folder.quantization_config) == ("awq", {})
