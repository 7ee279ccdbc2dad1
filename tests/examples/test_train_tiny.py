"""The rest of examples/train_tiny: tokenizer, chat template, batches, model and training."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from examples.train_tiny.batches import PROMPT_WEIGHT, Mixture, load_batches
from examples.train_tiny.chat import Chat, call_text, render
from examples.train_tiny.corpus import Corpus
from examples.train_tiny.extraction import extraction
from examples.train_tiny.model import Llama, ModelConfig
from examples.train_tiny.tokenizer import save_tokenizer, train_tokenizer
from examples.train_tiny.toolcalls import tool_call
from examples.train_tiny.train import save, share_of_peak, train
from examples.train_tiny.words import Words
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

from octavo import LLM, SamplingParams
from octavo.inputs.chat import ChatRenderer
from octavo_plugins.sources.embedded.source import EmbeddedSource
from octavo_plugins.tokenizers.transformers.tokenizer import TransformersTokenizer
from rendered_chats import rendered

SMALL = ModelConfig(
    vocab_size=2048,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
)


@pytest.fixture(scope="module")
def shipped() -> Path:
    folder = EmbeddedSource().find("octavo/tiny", revision=None)
    assert folder is not None
    return folder


@pytest.fixture(scope="module")
def tokenizer(shipped: Path) -> Tokenizer:
    return Tokenizer.from_file(str(shipped / "tokenizer.json"))


@pytest.mark.parametrize(
    "word", ["Zorvath", "Thandiwe", "book_ferry", "qx-7731", "118.45", "\u00e9t\u00e9"]
)
def test_a_rare_word_is_the_same_tokens_wherever_it_stands(tokenizer: Tokenizer, word: str) -> None:
    def tokens(text: str) -> list[str]:
        return tokenizer.encode(text, add_special_tokens=False).tokens

    alone = tokens(word)
    for text in (f"call {word}", f'{{"a": "{word}"}}', f"\n{word}\n", f"({word})"):
        inside = [token.removeprefix("\u0120") for token in tokens(text)]
        windows = (inside[i : i + len(alone)] for i in range(len(inside)))
        assert alone in windows


@pytest.mark.parametrize(
    "text", ["na\u00efve \u65e5\u672c\n\n\t x  y", "<|im_start|>", "", "a" * 500]
)
def test_any_text_survives_encoding(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_the_script_makes_the_tokenizer_that_ships_in_kind(tmp_path: Path) -> None:
    documents = Corpus().documents(-1)
    texts = ["".join(piece.text for piece in next(documents)) for _ in range(300)]
    save_tokenizer(train_tokenizer(texts), tmp_path)
    text = 'Book a ferry to Tolvik: {"n": 12}'
    assert (
        TransformersTokenizer(tmp_path).decode(TransformersTokenizer(tmp_path).encode(text)) == text
    )


@pytest.mark.parametrize("kind", [tool_call, extraction], ids=["tools", "JSON"])
def test_the_chat_template_writes_what_training_wrote(
    shipped: Path, kind: Callable[[Words], Chat]
) -> None:
    renderer = ChatRenderer(TransformersTokenizer(shipped))
    words = Words(random.Random(0))
    for _ in range(50):
        chat = kind(words)
        messages = [{"role": turn.role, "content": turn.content} for turn in chat.turns]
        if chat.system:
            messages.insert(0, {"role": "system", "content": chat.system})
        tools = [tool.as_openai() for tool in chat.tools] or None
        trained = "".join(piece.text for piece in render(chat)) + "\n"
        assert rendered(renderer, messages, tools=tools, add_generation_prompt=False) == trained


@pytest.mark.parametrize(
    "arguments", [{"city": "\u00c9vry"}, '{"city": "\u00c9vry"}'], ids=["object", "text"]
)
def test_tool_calls_of_a_message_are_written_as_the_model_writes_them(
    shipped: Path, arguments: object
) -> None:
    renderer = ChatRenderer(TransformersTokenizer(shipped))
    call = {"type": "function", "id": "1", "function": {"name": "find", "arguments": arguments}}
    messages = [
        {"role": "user", "content": "Find it."},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "ok"},
    ]
    assert call_text("find", {"city": "\u00c9vry"}) in rendered(renderer, messages)


def test_a_batch_is_the_same_for_any_number_of_workers(shipped: Path) -> None:
    mixture = Mixture(seed=3, num_batches=4, num_tokens=512, copying_batches=2)
    alone, shared = (list(load_batches(shipped / "tokenizer.json", mixture, n)) for n in (0, 2))
    for one, other in zip(alone, shared, strict=True):
        for field in dataclasses.fields(one):
            assert torch.equal(getattr(one, field.name), getattr(other, field.name))


def test_documents_of_a_batch_begin_at_position_0_and_do_not_predict_one_another(
    shipped: Path,
) -> None:
    mixture = Mixture(seed=3, num_batches=1, num_tokens=600, copying_batches=0)
    (batch,) = load_batches(shipped / "tokenizer.json", mixture, 0)
    assert len(batch.ids_T) == batch.borders[-1] == 600
    assert (batch.positions_T[batch.borders[:-1].long()] == 0).all()
    assert (batch.weights_T[batch.borders[1:].long() - 1] == 0).all()
    weights = set(batch.weights_T.unique().tolist())
    assert sorted(weights) == pytest.approx([0.0, PROMPT_WEIGHT, 1.0])


def test_the_model_gives_the_logits_of_transformers_and_of_octavo(
    shipped: Path, tmp_path: Path
) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((shipped / name).read_bytes())
    torch.manual_seed(0)
    model = Llama(SMALL)
    for parameter in model.parameters():  # sharp enough that a wrong norm or rotation shows
        scale = 8 if parameter.dim() == 2 else 1
        parameter.data = (parameter.data * scale).bfloat16().float()
    save(model, tmp_path)
    ids_T = torch.randint(5, 2048, (20,), generator=torch.Generator().manual_seed(1))
    borders = torch.tensor([0, 8, 20])
    positions_T = torch.cat((torch.arange(8), torch.arange(12)))
    logits_TV = model(ids_T, positions_T, borders)
    reference = LlamaForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    expected_TV = torch.cat([reference(part[None]).logits[0] for part in (ids_T[:8], ids_T[8:])])
    torch.testing.assert_close(logits_TV, expected_TV, atol=1e-4, rtol=1e-4)
    with LLM(str(tmp_path), dtype="float32", num_blocks=128) as llm:
        params = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
        (output,) = llm.generate({"prompt_token_ids": ids_T[8:].tolist()}, params, use_tqdm=False)
    assert output.outputs[0].token_ids == [int(logits_TV[-1].argmax())]


@pytest.mark.slow
def test_training_lowers_the_loss(
    shipped: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tokenizer.json").write_bytes((shipped / "tokenizer.json").read_bytes())
    train(tmp_path, steps=30, tokens=512, seed=0, workers=0, config=SMALL)
    lines = capsys.readouterr().out.splitlines()
    first, last = (float(lines[i].split("loss")[1].split()[0]) for i in (0, -1))
    assert last < first - 1


def test_the_learning_rate_rises_and_falls_to_nothing() -> None:
    rates = [share_of_peak(step, 100) for step in range(101)]
    assert rates[0] == 0
    assert max(rates) == rates[2] == 1
    assert rates[100] == pytest.approx(0)
    assert rates[2:] == sorted(rates[2:], reverse=True)
