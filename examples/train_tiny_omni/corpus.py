"""The corpus: chats about media that are drawn on the spot, and those of octavo/tiny in words.

``python -m examples.train_tiny_omni.corpus FOLDER`` writes some, with their media.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from examples.train_tiny.chat import Chat, Piece, Turn, render
from examples.train_tiny.corpus import Corpus as TinyCorpus
from examples.train_tiny.templates import expand
from examples.train_tiny_omni.clips import Clip, draw_clip
from examples.train_tiny_omni.features import RATE
from examples.train_tiny_omni.pictures import Picture, draw_figure, draw_picture
from examples.train_tiny_omni.questions import Facts, Question, ask, gives_away, load, typed
from examples.train_tiny_omni.ranges import chance
from examples.train_tiny_omni.sounds import Sound, draw_sound

IMAGE, VIDEO, AUDIO = "<|image|>", "<|video|>", "<|audio|>"
KINDS = {"picture": 0.27, "pictures": 0.16, "clip": 0.2, "sound": 0.2, "words": 0.17}
"""The shares of documents."""
COUNTS = {"picture": 90, "pictures": 45, "clip": 75, "sound": 75, "about": 15}
"""The questions of the test."""
SEED = 17
"""Seed of the media and wordings of the test."""
Drawn = Picture | Clip | Sound
SYSTEMS = ("You are a helpful assistant.", "You see, hear and answer.", "Answer briefly.")


@dataclass(frozen=True)
class Media:
    """Items in the order of their places, and what is right about them."""

    items: Sequence[Drawn]
    facts: Facts

    @property
    def places(self) -> list[str]:
        kinds = {Picture: IMAGE, Clip: VIDEO, Sound: AUDIO}
        return [kinds[type(item)] for item in self.items]


@dataclass(frozen=True)
class Document:
    """Text with a place for each item."""

    pieces: list[Piece]
    items: Sequence[Drawn] = ()


def draw_media(
    rng: np.random.Generator, kind: str, *, held_out: bool = False, rate: int = RATE
) -> Media:
    """``held_out``: of what is kept for the test, and clips with all their frames."""
    if kind == "clip":
        figure = draw_figure(rng, held_out)
        clip = draw_clip(rng, figure, held_out, whole=held_out)
        return Media([clip], Facts(clip))
    if kind == "sound":
        sound = draw_sound(rng, held_out, rate)
        return Media([sound], Facts(sound))
    if kind == "pictures":
        figures = [draw_figure(rng, held_out) for _ in range(2)]
    else:
        figures = [draw_figure(rng, held_out, alone=True)]
    return Media([draw_picture(rng, each, held_out) for each in figures], Facts(figures))


class Corpus:
    """Documents by number: the same seed and number give the same ones on any machine."""

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed
        self._tiny = TinyCorpus(seed)

    def documents(self, number: int) -> Iterator[Document]:
        """An endless stream."""
        rng = np.random.default_rng((self._seed, number))
        words = random.Random(f"{self._seed}/{number}")
        in_words = self._tiny.documents(number)
        while True:
            (kind,) = words.choices(list(KINDS), list(KINDS.values()))
            if kind != "words":
                yield chat_about(rng, words, draw_media(rng, kind))
                continue
            pieces = about(words) if words.random() < 0.3 else changed(next(in_words))
            if not any(gives_away(piece.text) for piece in pieces):
                yield Document(pieces)


def chat_about(rng: np.random.Generator, words: random.Random, media: Media) -> Document:
    """One to three questions; the items stand with the first."""
    count = words.choice((1, 2, 3))
    turns = []
    for number in range(count):
        question = ask(words, media.facts)
        text = question.text if number else with_places(words, media.places, question.text)
        turns += [Turn("user", text), Turn("assistant", question.answer)]
    system = words.choice(SYSTEMS) if chance(rng, 0.15) else ""
    return Document(render(Chat(turns, system=system)), media.items)


def with_places(words: random.Random, places: Sequence[str], text: str) -> str:
    """Before the text or behind it, in a list or not."""
    gap = words.choice(("", "", " ", "\n"))
    if len(places) > 1 and words.random() < 0.3:
        name = words.choice(("Picture {}: ", "Image {}: ", "{}: ", "{}. ", "Photo {}\n"))
        shown = "\n".join(name.format(n) + place for n, place in enumerate(places, 1))
        return f"{shown}\n{text}"
    shown = gap.join(places)
    return f"{shown}{gap}{text}" if words.random() < 0.8 else f"{text}{gap}{shown}"


def about(words: random.Random) -> list[Piece]:
    """A question about the model, or about media that nobody has sent."""
    data = load("questions")
    if words.random() < 0.4:
        topic = data[words.choice(("picture", "clip", "sound"))]
        wordings, answer = topic[words.choice(list(topic))], data["nothing_there"]
    else:
        entry = words.choice(data["about"])
        wordings, answer = entry["ask"], entry["answer"]
    question = typed(words, expand(words.choice(wordings), words))
    return render(Chat([Turn("user", question), Turn("assistant", answer)]))


def changed(pieces: list[Piece]) -> list[Piece]:
    """A document of octavo/tiny, where that says who it is."""
    texts = []
    for piece in pieces:
        text = piece.text
        for old, new in load("questions")["replaced"].items():
            text = text.replace(old, new)
        texts.append(Piece(text, piece.learn))
    return texts


def held_out(
    kinds: dict[str, int], *, seed: int = SEED, rates: Sequence[int] = (RATE,)
) -> Iterator[tuple[Media | None, Question]]:
    """So many questions of each kind of the test; those about the model itself are "about"."""
    rng, words = np.random.default_rng(seed), random.Random(seed)
    answers = {entry["name"]: entry["answer"] for entry in load("questions")["about"]}
    for kind, count in kinds.items():
        for number in range(count):
            if kind == "about":
                texts = load("heldout")["about"]
                text, name = texts[number % len(texts)]
                yield None, Question("about itself", text, answers[name])
                continue
            rate = rates[number % len(rates)]
            media = draw_media(rng, kind, held_out=True, rate=rate)
            yield media, ask(words, media.facts, held_out=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.train_tiny_omni.corpus")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=20)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    for number, document in enumerate(islice(Corpus(options.seed).documents(0), options.count)):
        print(f"{number}:", "".join(piece.text for piece in document.pieces), end="\n\n")
        for place, item in enumerate(document.items):
            name = options.folder / f"{number}_{place}"
            if isinstance(item, Clip):
                item.frames[0].save(
                    f"{name}.gif", save_all=True, append_images=item.frames[1:], duration=150
                )
            elif isinstance(item, Sound):
                np.save(f"{name}.npy", item.samples_S)
            else:
                item.image.save(f"{name}.png")


if __name__ == "__main__":
    main()
