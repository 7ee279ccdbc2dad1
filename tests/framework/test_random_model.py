import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer, LlamaForCausalLM

from octavo.errors import ConfigError
from octavo.testing.random_model import make_random_model


def load_reference(folder: Path) -> LlamaForCausalLM:
    model, report = LlamaForCausalLM.from_pretrained(
        folder, dtype=torch.float32, output_loading_info=True
    )
    assert not any(report.values()), report
    return model.eval()


def greedy(
    model: LlamaForCausalLM, prompt: list[int], num_tokens: int
) -> tuple[list[int], torch.Tensor]:
    ids = torch.tensor([prompt])
    with torch.inference_mode():
        for _ in range(num_tokens):
            ids = torch.cat([ids, model(ids).logits[:, -1:].argmax(-1)], dim=1)
        return ids[0, len(prompt) :].tolist(), model(ids).logits[0]


@pytest.mark.parametrize("tie", [False, True])
def test_transformers_loads_every_tensor_and_greedy_output_is_sharp_and_varied(
    tmp_path: Path, tie: bool
) -> None:
    model = load_reference(make_random_model(tmp_path, tie=tie))
    for prompt in ([5, 81], [40, 300, 7, 7, 99, 410]):
        tokens, logits_TV = greedy(model, prompt, 32)
        top_T2 = logits_TV.topk(2).values
        assert len(set(tokens)) > 16
        assert (top_T2[:, 0] - top_T2[:, 1]).median() > 0.2
        assert 1 < logits_TV.std() < 6


def test_transformers_loads_shards_biases_and_settings_of_ones_own(tmp_path: Path) -> None:
    folder = make_random_model(
        tmp_path,
        sharded=True,
        attention_bias=True,
        mlp_bias=True,
        rope_theta=500.0,
        rope_scaling={"rope_type": "linear", "factor": 2.0},
        head_dim=8,
        num_layers=3,
    )
    model = load_reference(folder)
    assert model.model.layers[2].self_attn.q_proj.bias.abs().sum() > 0
    assert model.config.rope_parameters["rope_theta"] == 500.0
    assert model.config.rope_parameters["factor"] == 2.0
    assert model.config.head_dim == 8
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    attention = "model.layers.0.self_attn"
    files = {index["weight_map"][f"{attention}.{part}_proj.weight"] for part in "qkv"}
    assert len(files) > 1, "what is fused should come from different files"


def test_the_seed_decides_the_weights(tmp_path: Path) -> None:
    folders = [make_random_model(tmp_path / str(i), seed=seed) for i, seed in enumerate([1, 1, 2])]
    first, again, other = (load_file(folder / "model.safetensors") for folder in folders)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["lm_head.weight"], other["lm_head.weight"])


def test_weights_are_stored_in_the_dtype_that_config_names(tmp_path: Path) -> None:
    folder = make_random_model(tmp_path, dtype="bfloat16")
    assert {t.dtype for t in load_file(folder / "model.safetensors").values()} == {torch.bfloat16}
    assert json.loads((folder / "config.json").read_text())["torch_dtype"] == "bfloat16"


def test_the_tokenizer_keeps_any_text_and_knows_the_chat_format(tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(make_random_model(tmp_path))
    text = "The capital of France: naïve 漢字\t\x00 🙂\n\n  end"
    ids = tokenizer(text).input_ids
    assert tokenizer.decode(ids) == text
    assert len(tokenizer("The capital of France is").input_ids) <= 8
    assert max(tokenizer.get_vocab().values()) < 512
    messages = [{"role": "user", "content": "hi"}]
    rendered = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert rendered == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    config = json.loads((tmp_path / "config.json").read_text())
    assert tokenizer("<|im_end|>").input_ids == [config["eos_token_id"]]


def test_a_vocabulary_that_cannot_hold_all_bytes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="vocab_size=100 must be at least 259"):
        make_random_model(tmp_path, vocab_size=100)


def test_the_command_line_writes_a_folder_without_importing_transformers(tmp_path: Path) -> None:
    code = (
        "import sys, runpy; sys.argv = ['random_model', sys.argv[1], '--tie', '--seed', '3']; "
        "runpy.run_module('octavo.testing.random_model', run_name='__main__'); "
        "assert 'transformers' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "new")], check=True)
    config = json.loads((tmp_path / "new" / "config.json").read_text())
    assert config["tie_word_embeddings"] is True
    assert "lm_head.weight" not in load_file(tmp_path / "new" / "model.safetensors")
