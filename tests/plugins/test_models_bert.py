"""BERT and its kin, from folders as sentence-transformers writes them to ``LLM.embed``."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import BertTokenizerFast

from octavo import LLM, AsyncLLM, PoolingParams
from octavo.errors import ConfigError, OctavoError, ParameterError, PromptError, PromptTooLongError
from octavo.testing.faults import own_faults
from octavo.testing.model import check_model
from octavo.testing.reference import ModuleReference, write_with_reference
from octavo.testing.variants import variants_of
from octavo_plugins.models.bert.conformance import leave_out_biases, shift_positions
from octavo_registry import RequestOutcome, hookimpl
from small_models import HOST

WORDS = ["a", "cat", "dog", "sat", "on", "the", "mat", ":", "query", "document", "is", "it", "big"]
MAX_TOKENS = 24
TEXTS = [
    "a cat sat on the mat",
    "dog",
    "what is it",
    "",
    "The BIG dog sat on the unknown mat a cat a dog a cat a dog",
]


def write(folder: Path, architecture: str = "BertModel", **pooling: Any) -> ModuleReference:
    """A checkpoint with the files of sentence-transformers."""
    capabilities = HOST.models.info(architecture).metadata["capabilities"]
    (variant,) = variants_of(capabilities).values()
    reference = write_with_reference(folder, architecture, capabilities.reference, variant)
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    (folder / "vocab.txt").write_text("\n".join(vocabulary))
    BertTokenizerFast(str(folder / "vocab.txt"), do_lower_case=False).save_pretrained(folder)
    files = {
        "modules.json": [
            {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
            {"idx": 1, "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
            {"idx": 2, "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
        ],
        "1_Pooling/config.json": {"pooling_mode_mean_tokens": True, **pooling},
        "config_sentence_transformers.json": {
            "prompts": {"query": "query : ", "document": "document : "},
        },
        "sentence_bert_config.json": {"max_seq_length": MAX_TOKENS, "do_lower_case": True},
    }
    (folder / "1_Pooling").mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    return reference


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bert")


@pytest.fixture(scope="module")
def reference(folder: Path) -> ModuleReference:
    return write(folder)


@pytest.fixture(scope="module")
def llm(folder: Path, reference: ModuleReference) -> Iterator[LLM]:
    with LLM(folder, num_threads=1) as llm:
        yield llm


def ids_of(text: str) -> list[int]:
    known = {word: number for number, word in enumerate(WORDS, 5)}
    return [2, *(known.get(word, 1) for word in text.lower().split()), 3]


def mean(reference: ModuleReference, ids: list[int], skip: int = 0) -> Tensor:
    with torch.inference_mode():
        vector = reference.module(torch.tensor([ids])).last_hidden_state[0, skip:].mean(0)
    return vector / vector.norm()


def close(found: Any, expected: Tensor) -> None:
    torch.testing.assert_close(torch.as_tensor(found), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("architecture", ["BertModel", "XLMRobertaModel"])
def test_an_architecture_passes_the_kit(architecture: str) -> None:
    checks = check_model(HOST, architecture)
    assert [f"{c.name}: {c.detail}" for c in checks if not c.passed] == []
    assert len(checks) >= 13


@pytest.mark.parametrize("change", [shift_positions, leave_out_biases])
def test_the_kit_sees_an_architecture_that_is_wrong(change: Any) -> None:
    wrong = own_faults({"it": change})["a missing it"]
    assert wrong is not None
    checks = check_model(wrong.host_like(HOST), "BertModel")
    assert [c.name.rpartition(": ")[2] for c in checks if not c.passed] == [
        "vectors (cls_token) equal those of transformers:BertModel"
    ]


def test_texts_become_the_vectors_of_the_reference(llm: LLM, reference) -> None:
    outputs = llm.embed(TEXTS, use_tqdm=False)
    assert [output.prompt_token_ids for output in outputs] == [ids_of(text) for text in TEXTS]
    for text, output in zip(TEXTS, outputs, strict=True):
        close(output.outputs.embedding, mean(reference, ids_of(text)))
        assert (output.outputs.hidden_size, output.finished, output.error) == (64, True, None)
    (one,) = llm.encode(TEXTS[0], pooling_task="embed", use_tqdm=False)
    close(one.outputs.data, mean(reference, ids_of(TEXTS[0])))


def test_a_vector_depends_on_no_neighbour_and_no_order(llm: LLM) -> None:
    rng = random.Random(0)
    texts = [" ".join(rng.choices(WORDS, k=rng.randint(1, 20))) for _ in range(300)]
    together = llm.embed_array(texts, use_tqdm=False)
    again = llm.embed_array(texts[::-1], use_tqdm=False)[::-1]
    np.testing.assert_allclose(together, again, atol=1e-6)
    alone = np.concatenate([llm.embed_array(text, use_tqdm=False) for text in texts[::50]])
    np.testing.assert_allclose(together[::50], alone, atol=1e-6)


def test_a_prompt_of_the_models_stands_before_each_text(llm: LLM, reference) -> None:
    found = llm.embed_array("a cat", PoolingParams(prompt_name="query"), use_tqdm=False)
    close(found[0], mean(reference, ids_of("query : a cat")))
    with pytest.raises(ParameterError, match=r"prompt_name='passage' is none of .*: query, doc"):
        llm.embed("a cat", PoolingParams(prompt_name="passage"))
    with pytest.raises(PromptError, match="prompt 1 is token ids, which are taken as they are"):
        llm.embed(["a cat", [2, 5, 3]], PoolingParams(prompt_name="query"), use_tqdm=False)


def test_a_prompts_tokens_may_count_for_nothing(tmp_path: Path) -> None:
    reference = write(tmp_path, include_prompt=False)
    file = tmp_path / "config_sentence_transformers.json"
    file.write_text(json.dumps({"prompts": {"q": "query :"}, "default_prompt_name": "q"}))
    with LLM(tmp_path, num_threads=1) as llm:
        found = llm.embed_array([" a cat", " dog", ids_of("a cat")], use_tqdm=False)
    # With them those before, as sentence-transformers leaves them out.
    close(found[0], mean(reference, ids_of("query : a cat"), skip=3))
    close(found[1], mean(reference, ids_of("query : dog"), skip=3))
    close(found[2], mean(reference, ids_of("a cat")))  # ids are taken as they are


def test_a_text_that_is_too_long_is_refused_or_cut_before_what_ends_it(llm: LLM, reference) -> None:
    long = " ".join(["cat", "dog"] * 20)
    assert llm.ready.max_model_len == MAX_TOKENS
    with pytest.raises(PromptTooLongError, match="prompt 1 has 42 tokens, and the model takes 24"):
        llm.embed(["cat", long], use_tqdm=False)
    for asked, most in ((-1, MAX_TOKENS), (7, 7)):
        params = PoolingParams(truncate_prompt_tokens=asked)
        short, cut = llm.embed(["cat", long], params, use_tqdm=False)
        ids = ids_of(long)
        assert cut.prompt_token_ids == [*ids[: most - 1], ids[-1]]
        assert short.prompt_token_ids == ids_of("cat")
        close(cut.outputs.embedding, mean(reference, cut.prompt_token_ids))
        (bare,) = llm.embed([[8] * 20 + [9] * 20], params, use_tqdm=False)  # ids as they are
        assert bare.prompt_token_ids == ([8] * 20 + [9] * 20)[:most]
    for wrong in (2, MAX_TOKENS + 1, -2):
        with pytest.raises(ParameterError, match=r"truncate_prompt_tokens=.* must be from 3 to 24"):
            llm.embed("cat", PoolingParams(truncate_prompt_tokens=wrong))


def test_a_length_of_1_and_the_first_entries_may_be_asked_for(folder: Path, reference) -> None:
    with LLM(folder, num_threads=1, hf_overrides={"matryoshka_dimensions": [16, 32]}) as llm:
        plain = llm.embed_array("a cat", PoolingParams(normalize=False), use_tqdm=False)[0]
        whole = llm.embed_array("a cat", use_tqdm=False)[0]
        np.testing.assert_allclose(plain / np.linalg.norm(plain), whole, atol=1e-6)
        cut = llm.embed_array("a cat", PoolingParams(dimensions=16), use_tqdm=False)[0]
        np.testing.assert_allclose(cut, plain[:16] / np.linalg.norm(plain[:16]), atol=1e-6)
        with pytest.raises(ParameterError, match=r"dimensions=8 must be one of \[16, 32\]"):
            llm.embed("a cat", PoolingParams(dimensions=8))


@pytest.mark.parametrize("left", [{}, {"pad_token_id": None}], ids=["none", "null"])
def test_positions_begin_behind_robertas_padding_where_no_file_names_it(left, tmp_path) -> None:
    reference = write(tmp_path, "XLMRobertaModel")
    (tmp_path / "sentence_bert_config.json").unlink()
    config = json.loads((tmp_path / "config.json").read_text())
    assert config.pop("pad_token_id") == 1
    (tmp_path / "config.json").write_text(json.dumps({**config, **left}))
    with LLM(tmp_path, num_threads=1) as llm:
        assert llm.ready.max_model_len == config["max_position_embeddings"] - 2
        longest = [5 + i % 7 for i in range(llm.ready.max_model_len)]
        close(llm.embed_array([longest], use_tqdm=False)[0], mean(reference, longest))


def test_dimensions_that_are_no_list_are_refused(folder: Path, reference) -> None:
    with (
        LLM(folder, num_threads=1, hf_overrides={"matryoshka_dimensions": 16}) as llm,
        pytest.raises(ConfigError, match=r"matryoshka_dimensions=16 in config.json is no list"),
    ):
        llm.embed("a cat", PoolingParams(dimensions=16))


def test_a_prompt_that_is_listed_and_empty_may_be_named(tmp_path: Path) -> None:
    reference = write(tmp_path)
    file = tmp_path / "config_sentence_transformers.json"
    file.write_text(json.dumps({"prompts": {"query": "", "document": ""}}))
    with LLM(tmp_path, num_threads=1) as llm:
        found = llm.embed_array("a cat", PoolingParams(prompt_name="query"), use_tqdm=False)
    close(found[0], mean(reference, ids_of("a cat")))


def test_dimensions_need_a_model_that_was_trained_for_them(llm: LLM) -> None:
    with pytest.raises(ParameterError, match=r"config.json does not say that vectors may be cut"):
        llm.embed("a cat", PoolingParams(dimensions=8))


@pytest.mark.parametrize(
    "prompt",
    [
        [],
        "\ud800",
        [10**10],
        {"prompt": "x", "colour": 1},
        {"prompt": "x", "cache_salt": "s"},
        {"prompt": "x", "multi_modal_data": {"image": 1}},
        [2, 160],
        [2, -1],
        [2, 7.5],
        [True],
    ],
)
def test_a_prompt_that_is_wrong_ends_the_call_and_leaves_the_next_alone(llm: LLM, prompt) -> None:
    with pytest.raises(PromptError):
        llm.embed(["cat"] * 200 + [prompt], use_tqdm=False)
    assert llm.embed_array("cat", use_tqdm=False).shape == (1, 64)
    assert llm.embed([], use_tqdm=False) == []


def test_a_prompt_that_is_wrong_is_named(llm: LLM) -> None:
    with pytest.raises(
        PromptError, match="prompt 1: token 1 is 9999, outside the vocabulary of 16"
    ):
        llm.embed([[2, 7, 3], [2, 9999, 3]], use_tqdm=False)
    with pytest.raises(PromptError, match=r"prompt 0: token 1 is 7.5 of type float, not an int"):
        llm.embed([2, 7.5], use_tqdm=False)


@pytest.fixture(scope="module")
def broken(folder: Path, reference: ModuleReference, tmp_path_factory) -> Path:
    """The model with a weight of token 100 that is not a number."""
    path: Path = tmp_path_factory.mktemp("broken")
    shutil.copytree(folder, path, dirs_exist_ok=True)
    tensors = load_file(path / "model.safetensors")
    tensors["embeddings.word_embeddings.weight"][100] = torch.nan
    save_file(tensors, path / "model.safetensors")
    return path


def test_a_vector_that_is_not_finite_is_its_texts_error(broken: Path, reference) -> None:
    texts = [[2, 8, 3], [2, 100, 3], [2, 10, 3]]
    with LLM(broken, num_threads=1) as llm:
        first, wrong, last = llm.embed(texts, use_tqdm=False)
        with pytest.raises(OctavoError, match=r"prompt 1: .* a text's vector is NaN or infinite"):
            llm.embed_array(texts, use_tqdm=False)
    assert "a text's vector is NaN or infinite" in wrong.error
    assert wrong.outputs.embedding == []
    assert first.error is last.error is None
    close(last.outputs.embedding, mean(reference, [2, 10, 3]))


def test_plugins_hear_of_a_call_once(broken: Path) -> None:
    class Listener:
        OCTAVO_API = "1"
        heard: ClassVar[list[RequestOutcome]] = []

        @hookimpl
        def request_finished(self, outcome: RequestOutcome) -> None:
            self.heard.append(outcome)

    with LLM(broken, num_threads=1, plugins=[Listener()]) as llm:
        llm.embed(TEXTS, use_tqdm=False)
        llm.embed([[2, 100, 3], [2, 3]], use_tqdm=False)
        with pytest.raises(PromptError):
            llm.embed([[]], use_tqdm=False)
    told = [(each.finish_reasons, each.num_prompt_tokens, each.error) for each in Listener.heard]
    assert told[0] == (("stop",), sum(len(ids_of(text)) for text in TEXTS), None)
    assert told[1][:2] == (("error",), 5)
    assert told[1][2].startswith("text 0: ")
    assert told[2] == (("abort",), 0, "prompt 0 has no tokens")


def test_an_engine_in_a_process_of_its_own_gives_the_same(llm: LLM, folder: Path) -> None:
    texts = TEXTS * 80
    with LLM(folder, num_threads=1, engine_process=True) as apart:
        found = apart.embed_array(texts, use_tqdm=False)
    np.testing.assert_array_equal(found[:5], llm.embed_array(texts, use_tqdm=False)[:5])


def test_an_executor_of_ranks_refuses_it_by_name(folder: Path, reference: ModuleReference) -> None:
    with pytest.raises(ConfigError, match="executor 'ranks' embeds no texts yet"):
        LLM(folder, executor="ranks")


@pytest.mark.parametrize(
    "option",
    [{"num_blocks": 9}, {"kv_cache_memory_gib": 1.0}, {"kv_cache_dtype": "fp8"}],
    ids=str,
)
def test_options_that_mean_nothing_to_it_are_refused(folder: Path, reference, option) -> None:
    (name,) = option
    with pytest.raises(ConfigError, match=f"^{name}: with the task 'embed' BertModel has no cache"):
        LLM(folder, **option)


@pytest.mark.parametrize("method", ["classify", "score", "reward"])
def test_what_is_not_there_yet_says_so(llm: LLM, method: str) -> None:
    with pytest.raises(ConfigError, match=rf"{method}\(\) is not available yet"):
        getattr(llm, method)("a", "b")


def test_the_progress_of_texts_tells_of_no_output_tokens(llm: LLM, capsys) -> None:
    llm.embed(["a", "b"])
    shown = capsys.readouterr().err
    assert "2/2" in shown
    assert "tokens" not in shown


def test_what_does_not_embed_says_so(folder: Path, reference: ModuleReference) -> None:
    with pytest.raises(ConfigError, match="BertModel embeds texts, which AsyncLLM does not yet"):
        AsyncLLM(folder)


@pytest.mark.parametrize("architecture", ["BertForMaskedLM", "RobertaForMaskedLM"])
def test_an_embedder_may_be_called_by_the_class_it_was_trained_from(architecture, tmp_path) -> None:
    embedder = architecture.replace("ForMaskedLM", "Model")
    reference = write(tmp_path, embedder)
    config = json.loads((tmp_path / "config.json").read_text())
    config["architectures"] = [architecture]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with LLM(tmp_path, num_threads=1) as llm:
        close(llm.embed_array("a cat", use_tqdm=False)[0], mean(reference, ids_of("a cat")))


@pytest.mark.parametrize("prefix", ["bert.", "roberta."])
def test_a_checkpoint_with_a_head_and_old_names_is_read(folder: Path, prefix, tmp_path) -> None:
    reference = write(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    renamed = {
        f"{prefix}{name}".replace("LayerNorm.weight", "LayerNorm.gamma"): tensor
        for name, tensor in tensors.items()
    }
    renamed["cls.predictions.bias"] = torch.zeros(3)
    renamed[f"{prefix}embeddings.position_ids"] = torch.arange(9)[None]
    save_file(renamed, tmp_path / "model.safetensors")
    with LLM(tmp_path, num_threads=1) as llm:
        close(llm.embed_array("a cat", use_tqdm=False)[0], mean(reference, ids_of("a cat")))
