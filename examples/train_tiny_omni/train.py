"""Trains the model: ``python -m examples.train_tiny_omni.train FOLDER`` writes all of it there.

It begins with octavo/tiny. Minutes on a GPU; on a CPU, ``--steps 50 --tokens 2048 --workers 1
--reports 1`` shows that everything works.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from examples.train_tiny.batches import Mixture
from examples.train_tiny.chat import Chat, Turn, render
from examples.train_tiny.optimizer import Muon
from examples.train_tiny_omni.batches import Batch, Line, load_batches
from examples.train_tiny_omni.corpus import AUDIO, COUNTS, IMAGE, VIDEO, Document, held_out
from examples.train_tiny_omni.model import VOCAB_SIZE, Hints, Omni, OmniConfig, Output
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer
from torch import Tensor, nn
from torch.nn import functional as F

TINY = Path(__file__).parents[2] / "plugins/octavo_plugins/sources/embedded/tiny"
"""The model to begin with."""
CHAT_TEMPLATE = (Path(__file__).parent / "chat_template.jinja").read_text()
BETAS = (0.9, 0.98)
WEIGHT_DECAY = 0.05
MUON_PEAK, ADAMW_PEAK = 0.02, 2e-3
"""Learning rates of the encoders."""
KEPT_MUON_PEAK, KEPT_ADAMW_PEAK = 0.005, 6e-4
"""Learning rates of what octavo/tiny knows already."""
TABLES = ("embed_tokens.weight", "positions.weight", "frames.weight")
WARMUP = 0.03
MAX_GRADIENT = 1.0
LOG_EVERY = 50


def share_of_peak(progress: float) -> float:
    """The learning rate: up in a straight line, then down to zero along a cosine."""
    if progress < WARMUP:
        return progress / WARMUP
    return 0.5 * (1 + math.cos(math.pi * min(1.0, (progress - WARMUP) / (1 - WARMUP))))


def save_tokenizer(folder: Path) -> Tokenizer:
    """That of octavo/tiny with tokens where media stand."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer.from_file(str(TINY / "tokenizer.json"))
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in (IMAGE, VIDEO, AUDIO)])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = json.loads((TINY / "tokenizer_config.json").read_text())
    settings["chat_template"] = CHAT_TEMPLATE
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")
    return tokenizer


def make_model(config: OmniConfig, begin: Path | None = None) -> Omni:
    """The weights in a folder; by default those of octavo/tiny, and new encoders."""
    model = Omni(config)
    if begin is not None:
        model.load_state_dict(load_file(begin / "model.safetensors"))
        return model
    tiny = load_file(TINY / "model.safetensors")
    known = {name: tensor.float() for name, tensor in tiny.items()}
    table = known["model.embed_tokens.weight"]
    missing = table.mean(0).expand(VOCAB_SIZE - len(table), -1)
    known["model.embed_tokens.weight"] = torch.cat([table, missing])
    model.load_state_dict(known, strict=False)
    return model


def make_optimizers(model: Omni, hints: Hints) -> list[torch.optim.Optimizer]:
    """Muon for the matrices between vectors, AdamW for what is looked up or multiplied in."""
    kept, new = list(model.model.named_parameters()), []
    for name, module in model.named_children():
        if name != "model":
            new += module.named_parameters(prefix=name)
    groups: dict[str, list[dict[str, Any]]] = {"muon": [], "adamw": []}
    for named, muon, adamw in (
        (kept, KEPT_MUON_PEAK, KEPT_ADAMW_PEAK),
        (new, MUON_PEAK, ADAMW_PEAK),
    ):
        maps = [p for name, p in named if p.dim() == 2 and not name.endswith(TABLES)]
        rest = [p for name, p in named if p.dim() != 2 or name.endswith(TABLES)]
        groups["muon"].append({"params": maps, "lr": muon, "peak": muon})
        groups["adamw"].append({"params": rest, "lr": adamw, "peak": adamw})
    groups["adamw"].append({"params": list(hints.parameters()), "peak": ADAMW_PEAK})
    on_gpu = next(model.parameters()).is_cuda
    return [
        Muon(groups["muon"], lr=MUON_PEAK, weight_decay=WEIGHT_DECAY),
        torch.optim.AdamW(groups["adamw"], betas=BETAS, weight_decay=0.0, fused=on_gpu),
    ]


def output_of(model: nn.Module, batch: Batch) -> Output:
    if batch.borders.is_cuda:
        torch._dynamo.mark_dynamic(batch.borders, 0)
    on_gpu = batch.ids_T.is_cuda  # a CPU gains nothing from bfloat16
    with torch.autocast("cuda", torch.bfloat16, enabled=on_gpu):
        output: Output = model(batch)
    return output


def losses_of(model: nn.Module, hints: Hints, batch: Batch) -> Tensor:
    """That of the answers, and that of what the encoders are asked directly."""
    output = output_of(model, batch)
    learnt = batch.weights_T.nonzero().squeeze(1)
    answers = F.cross_entropy(output.logits_TV[learnt].float(), batch.targets_T[learnt])
    return torch.stack([answers, hints(output, batch)])


class HeldOut:
    """The questions of the test, in batches of the same length as those of training."""

    def __init__(self, tokenizer: Tokenizer, num_tokens: int, counts: dict[str, int]) -> None:
        self._kinds: list[list[str]] = [[]]
        lines = [Line(tokenizer, num_tokens)]
        for media, question in held_out(counts):
            text = "".join(media.places if media else []) + question.text
            pieces = render(Chat([Turn("user", text), Turn("assistant", question.answer)]))
            document = Document(pieces, media.items if media else ())
            if not lines[-1].add(document):
                lines.append(Line(tokenizer, num_tokens))
                self._kinds.append([])
                lines[-1].add(document)
            self._kinds[-1].append(question.kind)
        self._batches = [line.batch() for line in lines]

    def scores(self, model: nn.Module, device: str) -> dict[str, tuple[int, int]]:
        """How many answers of a kind are right in every token, and how many there are."""
        right: Counter[str] = Counter()
        total: Counter[str] = Counter()
        for batch, kinds in zip(self._batches, self._kinds, strict=True):
            # With gradients, which nobody takes: without them all would be compiled once more.
            output = output_of(model, batch.to(device))
            chosen_T = output.logits_TV.detach().argmax(-1).cpu()
            fits_T = (chosen_T == batch.targets_T) | (batch.weights_T == 0)
            for kind, first, end in zip(kinds, batch.borders, batch.borders[1:], strict=False):
                total[kind] += 1
                right[kind] += bool(fits_T[first:end].all())
        return {kind: (right[kind], count) for kind, count in sorted(total.items())}


def report(scores: dict[str, tuple[int, int]]) -> str:
    right, total = (sum(pair[place] for pair in scores.values()) for place in (0, 1))
    kinds = "; ".join(f"{kind} {good}/{count}" for kind, (good, count) in scores.items())
    return f"held out: {right}/{total} = {right / total:.1%} ({kinds})"


def train(
    folder: Path,
    *,
    steps: int,
    tokens: int,
    seconds: float,
    seed: int,
    workers: int,
    reports: int = 12,
    begin: Path | None = None,
    factor: float = 1.0,
) -> Omni:
    """Train on the corpus of ``seed``, so many steps or at most so many seconds.

    ``begin`` is where to go on from, without hints: encoders that are used need none.
    ``factor`` scales all learning rates.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(seed)
    tokenizer = save_tokenizer(folder)
    config = OmniConfig()
    model, hints = make_model(config, begin).to(device), Hints(config.hidden_size).to(device)
    test = HeldOut(tokenizer, tokens, COUNTS)
    if device == "cuda":
        torch.set_float32_matmul_precision("high")
        for layer in model.model.layers:
            layer.compile()  # one layer's code serves all of them
    optimizers = make_optimizers(model, hints)
    mixture = Mixture(seed=seed, num_batches=steps, num_tokens=tokens)
    batches = iter(load_batches(folder / "tokenizer.json", mixture, workers))
    started, reported, waited, losses = time.perf_counter(), 0, 0.0, []
    for step, batch, wait in _timed(batches):
        gone = time.perf_counter() - started
        progress = max(step / steps, gone / seconds)
        if progress >= 1:
            break
        waited += wait
        for group in (group for each in optimizers for group in each.param_groups):
            group["lr"] = group["peak"] * factor * share_of_peak(progress)
        both = losses_of(model, hints, batch.to(device))
        (both.sum() if begin is None else both[0]).backward()
        nn.utils.clip_grad_norm_(model.parameters(), MAX_GRADIENT)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        losses.append(both.detach())
        if step % LOG_EVERY == 0:
            answers, hinted = torch.stack(losses).mean(0).tolist()
            print(
                f"step {step:5} loss {answers:.4f}, hints {hinted:.4f} "
                f"{gone:6.1f} s, waited {waited:.1f}",
                flush=True,
            )
            losses.clear()
        if progress * reports >= reported + 1:
            reported += 1
            print(report(test.scores(model, device)), flush=True)
    for parameter in model.parameters():  # as they will be saved
        parameter.data = parameter.data.bfloat16().float()
    print("saved,", report(test.scores(model, device)), flush=True)
    return model


def _timed(batches: Iterator[Batch]) -> Iterator[tuple[int, Batch, float]]:
    """Batches with their number and the seconds that one had to wait for each."""
    step = 0
    while True:
        asked = time.perf_counter()
        batch = next(batches, None)
        if batch is None:
            return
        yield step, batch, time.perf_counter() - asked
        step += 1


def save(model: Omni, folder: Path) -> None:
    """Write config and bf16 weights beside the tokenizer."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    config = json.loads((TINY / "config.json").read_text())
    ends = {name: config[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    places = {"image": IMAGE, "video": VIDEO, "audio": AUDIO}
    ids = {f"{name}_token_id": tokenizer.token_to_id(place) for name, place in places.items()}
    entries = model.config.as_json() | ends | ids
    (folder / "config.json").write_text(json.dumps(entries, indent=2) + "\n")
    (folder / "generation_config.json").write_bytes((TINY / "generation_config.json").read_bytes())
    weights = {name: p.detach().to("cpu", torch.bfloat16) for name, p in model.named_parameters()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.train_tiny_omni.train")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--tokens", type=int, default=24576, help="tokens in a batch")
    parser.add_argument("--seconds", type=float, default=270, help="training ends by then")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=15)
    parser.add_argument("--reports", type=int, default=12, help="scores on the way")
    parser.add_argument("--begin", type=Path, help="go on from the weights in this folder")
    parser.add_argument("--factor", type=float, default=1.0, help="of the learning rates")
    options = vars(parser.parse_args())
    save(train(**options), options["folder"])


if __name__ == "__main__":
    main()
