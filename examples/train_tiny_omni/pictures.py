"""Pictures of one coloured shape: any size and place, turned, noisy, on backgrounds of all kinds.

Axes in names: H height, W width, C colours, N corners.
"""

from __future__ import annotations

import colorsys
from dataclasses import dataclass
from io import BytesIO

import numpy as np
from examples.train_tiny_omni.ranges import Range, chance
from PIL import Image, ImageDraw

COLOURS = {
    "red": (0.99, 0.02, 0.8, 1.0, 0.7, 1.0),
    "orange": (0.075, 0.1, 0.85, 1.0, 0.9, 1.0),
    "yellow": (0.15, 0.175, 0.75, 1.0, 0.9, 1.0),
    "green": (0.29, 0.39, 0.7, 1.0, 0.4, 0.85),
    "blue": (0.58, 0.66, 0.7, 1.0, 0.6, 1.0),
    "purple": (0.76, 0.82, 0.6, 1.0, 0.45, 0.85),
    "black": (0.0, 1.0, 0.0, 0.15, 0.0, 0.12),
    "white": (0.0, 1.0, 0.0, 0.04, 0.94, 1.0),
}
"""From and to: hue (0.99 to 0.02 goes through red), saturation, value."""
NAMELESS = "nameless"
PALE = (0.0, 1.0, 0.12, 0.5, 0.25, 1.0)
"""Tones that have no name here. Of figures in these only the shape is asked, which so becomes
something that all colours have, also those in which it is never seen."""
NAMELESS_SHARE = 0.3
"""Share of single pictures."""
SHAPES = ("circle", "square", "triangle", "star", "cross", "heart", "moon", "ring")
HELD_OUT = frozenset(
    (shape, colour)
    for number, shape in enumerate(SHAPES)
    for colour in (tuple(COLOURS)[number * 3 % len(COLOURS)],)
)
"""Each shape is seen in all colours but one, and each colour on all shapes but one."""
SIDE = Range(56, 280, 150, 170)
RADIUS = Range(0.17, 0.46, 0.28, 0.33)
"""Share of the shorter side."""
PLACE = Range(0.0, 1.0, 0.6, 0.7)
"""Share of the room that the shape leaves, in width and height."""
MAX_ASPECT = 2.0
CONTRAST = 110.0
"""The least distance between the colours of shape and ground, in steps of 255."""
CIRCLE = np.linspace(0, 2 * np.pi, 48, endpoint=False)


@dataclass(frozen=True)
class Figure:
    """A shape in a colour."""

    shape: str
    colour: str

    def __str__(self) -> str:
        article = "an" if self.colour[0] == "o" else "a"
        return f"{article} {self.colour} {self.shape}"


def draw_figure(rng: np.random.Generator, held_out: bool, *, alone: bool = False) -> Figure:
    """Any but those that are held out; for the test half of those that are. One that is
    ``alone`` may be of a colour without a name."""
    if alone and not held_out and chance(rng, NAMELESS_SHARE):
        return Figure(SHAPES[rng.integers(len(SHAPES))], NAMELESS)
    pairs = sorted(HELD_OUT)
    if held_out and chance(rng, 0.5):
        return Figure(*pairs[rng.integers(len(pairs))])
    while True:
        shape, colour = SHAPES[rng.integers(len(SHAPES))], tuple(COLOURS)[rng.integers(8)]
        if (shape, colour) not in HELD_OUT:
            return Figure(shape, colour)


@dataclass(frozen=True)
class Picture:
    figure: Figure
    image: Image.Image
    place: tuple[float, float]
    """The shape's middle, from that of the picture, in halves of the picture's longer side."""


@dataclass(frozen=True)
class Look:
    """All that the pictures of one clip share."""

    figure: Figure
    size: tuple[int, int]
    radius: float
    angle: float
    colour: np.ndarray
    ground_HWC: np.ndarray
    noise: float
    quality: int | None

    @property
    def room(self) -> tuple[float, float]:
        """How far the middle of the shape can move in width and height."""
        width, height = self.size
        return width - 2 * self.radius, height - 2 * self.radius

    def middle(self, place: tuple[float, float]) -> tuple[float, float]:
        """Pixels from the upper left corner to a place from (0, 0) to (1, 1) in the room."""
        across, down = place
        return self.radius + across * self.room[0], self.radius + down * self.room[1]


def draw_look(
    rng: np.random.Generator, figure: Figure, held_out: bool, *, biggest: float = 1.0
) -> Look:
    """``biggest`` scales the shape and the picture down, to leave room or to save time."""
    short = SIDE.draw(rng, held_out)
    long = short * float(rng.uniform(1.0, MAX_ASPECT)) if chance(rng, 0.6) else short
    sides = (round(short * biggest), round(long * biggest))
    size = sides if chance(rng, 0.5) else sides[::-1]
    colour = paint(rng, figure.colour)
    return Look(
        figure=figure,
        size=size,
        radius=RADIUS.draw(rng, held_out) * biggest * min(size),
        angle=float(rng.uniform(0, 2 * np.pi)) if chance(rng, 0.7) else 0.0,
        colour=colour,
        ground_HWC=ground(rng, size, colour),
        noise=float(rng.uniform(0, 14)) if chance(rng, 0.6) else 0.0,
        quality=int(rng.integers(35, 96)) if chance(rng, 0.5) else None,
    )


def draw_picture(rng: np.random.Generator, figure: Figure, held_out: bool) -> Picture:
    look = draw_look(rng, figure, held_out)
    place = (PLACE.draw(rng, held_out), PLACE.draw(rng, held_out))
    return picture_of(rng, look, place)


def picture_of(rng: np.random.Generator, look: Look, place: tuple[float, float]) -> Picture:
    """The picture with the shape at a place from (0, 0), upper left, to (1, 1)."""
    half = max(look.size) / 2
    x, y = look.middle(place)
    seen_at = (x - look.size[0] / 2) / half, (y - look.size[1] / 2) / half
    return Picture(look.figure, render(rng, look, (x, y)), seen_at)


def render(rng: np.random.Generator, look: Look, middle: tuple[float, float]) -> Image.Image:
    mask = Image.new("L", (look.size[0] * 2, look.size[1] * 2))
    pen = ImageDraw.Draw(mask)
    for corners_N2, ink in outlines(look.figure.shape):
        turn = np.array(
            [[np.cos(look.angle), np.sin(look.angle)], [-np.sin(look.angle), np.cos(look.angle)]]
        )
        points_N2 = (corners_N2 @ turn * look.radius + middle) * 2
        pen.polygon([tuple(point) for point in points_N2.tolist()], fill=ink)
    share_HW1 = np.asarray(mask.reduce(2), np.float32)[..., None] / 255
    pixels_HWC = look.ground_HWC + share_HW1 * (look.colour - look.ground_HWC)
    if look.noise:
        pixels_HWC += look.noise * rng.standard_normal(pixels_HWC.shape, np.float32)
    image = Image.fromarray(pixels_HWC.clip(0, 255).astype(np.uint8))
    return image if look.quality is None else recompressed(image, look.quality)


def recompressed(image: Image.Image, quality: int) -> Image.Image:
    """The image with the marks that JPEG leaves."""
    file = BytesIO()
    image.save(file, "JPEG", quality=quality)
    return Image.open(file).convert("RGB")


def paint(rng: np.random.Generator, colour: str) -> np.ndarray:
    """One of the tones that go by a colour's name, RGB up to 255."""
    first, last, *others = COLOURS.get(colour, PALE)
    hue = rng.uniform(first, last if last > first else last + 1) % 1.0
    saturation, value = rng.uniform(others[0], others[1]), rng.uniform(others[2], others[3])
    return np.array(colorsys.hsv_to_rgb(hue, saturation, value), np.float32) * 255


def ground(rng: np.random.Generator, size: tuple[int, int], colour: np.ndarray) -> np.ndarray:
    """A background between two dull colours, neither of which is like the shape's."""
    width, height = size
    first, second = (_dull(rng, colour) for _ in range(2))
    if chance(rng, 0.4):
        return np.broadcast_to(first, (height, width, 3))
    kind = rng.random()
    if kind < 0.6:  # from one side to the other
        slope = rng.uniform(-1, 1, 2)
        across_W, down_H = np.linspace(0, slope[0], width), np.linspace(0, slope[1], height)
        share_HW = down_H[:, None] + across_W
        share_HW = share_HW - share_HW.min()
    else:  # clouds
        spots = Image.fromarray(rng.integers(0, 256, (5, 5), dtype=np.uint8))
        share_HW = np.asarray(spots.resize(size, Image.Resampling.BILINEAR), np.float32) / 255
    share_HW1 = np.clip(share_HW, 0, 1).astype(np.float32)[..., None]
    # The way between two colours may pass the shape's; a step towards the second never does.
    reach = 1.0 if np.abs(first - second).sum() < 200 else 0.3
    return first + share_HW1 * reach * (second - first)


def _dull(rng: np.random.Generator, unlike: np.ndarray) -> np.ndarray:
    while True:
        hue, saturation, value = rng.random(), rng.uniform(0, 0.35), rng.uniform(0, 1)
        found = np.array(colorsys.hsv_to_rgb(hue, saturation, value), np.float32) * 255
        if np.linalg.norm(found - unlike) > CONTRAST:
            return found


def outlines(shape: str) -> list[tuple[np.ndarray, int]]:
    """Polygons within the circle of radius 1, painted (255) or cut out (0) one after the other."""
    return [(np.asarray(corners_N2), ink) for corners_N2, ink in _OUTLINES[shape]]


def _regular(count: int, radii: tuple[float, ...] = (1.0,)) -> np.ndarray:
    """Corners at equal angles, the first at the top, at these radii in turn."""
    angles_N = np.arange(count) * 2 * np.pi / count - np.pi / 2
    radii_N = np.resize(radii, count)
    return np.stack([radii_N * np.cos(angles_N), radii_N * np.sin(angles_N)], axis=1)


def _disc(radius: float = 1.0, shift: float = 0.0) -> np.ndarray:
    return np.stack([radius * np.cos(CIRCLE) + shift, radius * np.sin(CIRCLE)], axis=1)


def _heart() -> np.ndarray:
    across_N = 16 * np.sin(CIRCLE) ** 3
    waves = {1: 13, 2: -5, 3: -2, 4: -1}
    up_N = sum(height * np.cos(number * CIRCLE) for number, height in waves.items())
    return np.stack([across_N, -up_N - 2.5], axis=1) / 17


def _cross(arm: float = 0.3) -> np.ndarray:
    a, b = arm, 0.95
    corners = [(-a, -b), (a, -b), (a, -a), (b, -a), (b, a), (a, a), (a, b), (-a, b), (-a, a)]
    return np.array([*corners, (-b, a), (-b, -a), (-a, -a)])


_OUTLINES: dict[str, list[tuple[np.ndarray, int]]] = {
    "circle": [(_disc(0.9), 255)],
    "square": [(_regular(4) @ np.array([[0.7071, 0.7071], [-0.7071, 0.7071]]), 255)],
    "triangle": [(_regular(3), 255)],
    "star": [(_regular(10, (1.0, 0.42)), 255)],
    "cross": [(_cross(), 255)],
    "heart": [(_heart(), 255)],
    "moon": [(_disc(0.95), 255), (_disc(0.85, 0.45), 0)],
    "ring": [(_disc(0.95), 255), (_disc(0.55), 0)],
}
