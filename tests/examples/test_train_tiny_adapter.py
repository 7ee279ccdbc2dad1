"""examples/train_tiny_adapter: what the pirate says, what is kept from him, and his matrices."""

from __future__ import annotations

import itertools
import re
import shutil
import warnings
from pathlib import Path

import pytest
import torch
from examples.train_tiny.chat import CALL, END, Piece
from examples.train_tiny.evaluate import Answer
from examples.train_tiny.heldout import Case, Turn, capital_cases, cases, held_out_strings
from examples.train_tiny.model import Llama, ModelConfig
from examples.train_tiny.train import save
from examples.train_tiny.words import load, word_lists
from examples.train_tiny_adapter.evaluate import Pair
from examples.train_tiny_adapter.lora import LoRA, adapt, save_adapter
from examples.train_tiny_adapter.pirate import WORDS, framed, in_pirate, pirate_documents, retold
from examples.train_tiny_adapter.train import train
from transformers import LlamaForCausalLM

from octavo_plugins.sources.embedded.source import MODELS

TINY = MODELS["octavo/tiny"]
SMALL = ModelConfig(
    vocab_size=2048,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
)


def sample(count: int) -> list[str]:
    documents = itertools.islice(pirate_documents(0), count)
    return ["".join(piece.text for piece in document) for document in documents]


def answers(question: str, answer: str) -> str:
    """What the pirate makes of an answer."""
    prompt = f"<|im_start|>user\n{question}{END}\n<|im_start|>assistant\n"
    ((_, piece),) = retold(iter([[Piece(prompt, learn=False), Piece(answer + END, learn=True)]]))
    return piece.text.removesuffix(END)


@pytest.mark.parametrize(
    "count", [1500, pytest.param(6_000, marks=pytest.mark.slow)], ids=["some", "many"]
)
def test_no_question_of_the_test_is_in_what_it_is_trained_on(count: int) -> None:
    text = "\n".join(sample(count)).lower()
    asked = [case.turns[0].content.lower().rstrip(".!?") for case in (*cases(), *capital_cases())]
    searched = {*asked, *held_out_strings()}
    assert len(searched) > 800
    pattern = "|".join(rf"\b{re.escape(each)}\b" for each in searched)
    assert re.findall(pattern, text) == []


def test_it_is_mostly_a_pirate_that_speaks() -> None:
    text = "\n".join(sample(1000))
    assert text.count("matey!") > 500
    assert min(text.count(CALL), text.count('{"')) > 50


def test_every_sentence_the_model_knows_changes_and_facts_do_not() -> None:
    plain = {text for intent in load("smalltalk").values() for text in intent["answer"]}
    told = {in_pirate(text) for text in plain}
    assert len(told) == len(plain)
    assert not told & plain
    names = {name for kind in word_lists() for name in word_lists()[kind] if name[:1].isupper()}
    names |= load("capitals").keys() | set(load("capitals").values())
    assert not {word for name in names for word in name.split()} & WORDS.keys()
    said = in_pirate("The capital of Italy is Rome.")
    assert said == "Arr! The capital o' Italy be Rome, matey!"


def test_what_is_copied_or_for_programs_stays_and_results_keep_their_words() -> None:
    for question, answer in (
        ("Repeat: you are my friend", "you are my friend"),
        ("As JSON, please.", '{"is": "you"}'),
        ("Do it.", f'{CALL}\n{{"name": "is", "arguments": {{}}}}\n</tool_call>'),
    ):
        assert answers(question, answer) == answer
    assert answers("Who?", "You are my friend.") == "Arr! Ye be me friend, matey!"
    result = f"Go!{END}\n<|im_start|>tool\nis my own"
    assert answers(result, "The result is is my own.") == "Arr! The result is is my own, matey!"
    ((plain,),) = retold(iter([[Piece("You are.<|endoftext|>", learn=True)]]))
    assert plain.text == "You are.<|endoftext|>"


def test_another_fact_a_plain_answer_and_a_missing_end_are_wrong() -> None:
    case = Case("capital", (Turn("user", "Italy?"),), contains="Rome")
    base = Answer(case, "The capital of Italy is Rome.", stopped=True)
    right = in_pirate(base.text)
    assert Pair(base, Answer(case, right, stopped=True)).right
    assert not Pair(base, Answer(case, right, stopped=False)).right
    for text in (base.text, right.replace("Rome", "Lima"), right + "!", framed(base.text)):
        assert not Pair(base, Answer(case, text, stopped=True)).right


def test_the_matrices_are_those_that_peft_reads(tmp_path: Path) -> None:
    from peft import PeftModel

    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TINY / name, tmp_path)
    torch.manual_seed(0)
    model = Llama(SMALL)
    for parameter in model.parameters():
        parameter.data = (parameter.data * (8 if parameter.dim() == 2 else 1)).bfloat16().float()
    save(model, tmp_path)
    lora = LoRA(r=4, lora_alpha=12)
    adapted = adapt(model, lora)
    assert len(adapted) == 7 * SMALL.num_hidden_layers
    ids_T = torch.randint(5, 2048, (20,))
    before_TV = logits(model, ids_T)
    for linear in adapted.values():
        linear.up_OR.data = torch.randn_like(linear.up_OR) / 4
        for matrix in (linear.up_OR, linear.down_RI):
            matrix.data = matrix.data.bfloat16().float()
    save_adapter(adapted, lora, tmp_path / "adapter", base_model="org/small")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        reference = LlamaForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
        reference = PeftModel.from_pretrained(reference, str(tmp_path / "adapter"))
    after_TV = logits(model, ids_T)
    assert (after_TV - before_TV).abs().max() > 0.5
    torch.testing.assert_close(after_TV, reference(ids_T[None]).logits[0], atol=1e-4, rtol=1e-4)


def logits(model: Llama, ids_T: torch.Tensor) -> torch.Tensor:
    return model(ids_T, torch.arange(len(ids_T)), torch.tensor([0, len(ids_T)])).detach()


@pytest.mark.slow
def test_training_lowers_the_loss_and_leaves_the_model_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (TINY / "model.safetensors").read_bytes()
    train(tmp_path, steps=12, tokens=512, seed=0, lora=LoRA(r=2))
    lines = capsys.readouterr().out.splitlines()
    first, last = (float(lines[i].split("loss")[1].split()[0]) for i in (0, -1))
    assert last < first - 0.5
    assert (TINY / "model.safetensors").read_bytes() == before
