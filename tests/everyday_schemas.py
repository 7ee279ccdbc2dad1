"""Fifty schemas of the kinds that applications ask for: as dictionaries and as Pydantic classes."""

from __future__ import annotations

from datetime import date
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from guided_case import objects

WORD = {"type": "string", "maxLength": 12}
FLAG = {"type": "boolean"}


def record(**properties: Any) -> dict[str, Any]:
    """All are required and none may be added."""
    return objects(properties, tuple(properties))


def some(items: Any, most: int, least: int = 0) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}


def text(pattern: str) -> dict[str, Any]:
    return {"type": "string", "pattern": pattern}


def written(name: str) -> dict[str, Any]:
    return {"type": "string", "format": name}


def whole(least: int, most: int) -> dict[str, Any]:
    return {"type": "integer", "minimum": least, "maximum": most}


def real(least: float, most: float, step: float = 0.1) -> dict[str, Any]:
    return {"type": "number", "minimum": least, "maximum": most, "multipleOf": step}


def ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/$defs/{name}"}


def tagged(kind: str, **properties: Any) -> dict[str, Any]:
    return record(kind={"const": kind}, **properties)


AMOUNT = record(value=real(0, 999, 0.01), currency={"enum": ["EUR", "USD", "JPY"]})
PLACE = record(latitude=real(-90, 90), longitude=real(-180, 180))

SCHEMAS: dict[str, dict[str, Any]] = {
    "a city": record(city=WORD, country=WORD, people=whole(1, 10**8)),
    "a mood": record(mood={"enum": ["good", "bad", "neither"]}, certainty=real(0, 1)),
    "labels": record(labels=some({"enum": ["sport", "politics", "science", "arts"]}, 3, 1)),
    "a verdict": {"enum": ["spam", "no spam"]},
    "a rating": whole(1, 5),
    "yes or no": FLAG,
    "a list of words": some(WORD, 4),
    "a table": some(some(whole(0, 9), 3, 3), 3, 1),
    "a pair": {"type": "array", "prefixItems": [WORD, whole(0, 99)], "items": False, "minItems": 2},
    "nothing or a name": {"type": ["string", "null"], "maxLength": 12},
    "a person": record(name=WORD, born=written("date"), mail=text(r"^[a-z]{1,8}@[a-z]{2,8}\.com$")),
    "an address": record(street=WORD, number=whole(1, 999), post=text("^[0-9]{5}$"), city=WORD),
    "an order": record(
        id=text("^[A-Z]{2}-[0-9]{4}$"),
        lines=some(record(article=WORD, pieces=whole(1, 20), price=AMOUNT), 2, 1),
        paid=FLAG,
    ),
    "a shipment": record(
        sent=ref("place"),
        arrived={"anyOf": [ref("place"), {"type": "null"}]},
    ) | {"$defs": {"place": PLACE}},
    "a tree": ref("node") | {
        "$defs": {"node": record(value=whole(0, 9), below=some(ref("node"), 2))}
    },
    "an expression": ref("term") | {
        "$defs": {
            "term": {
                "anyOf": [
                    whole(0, 99),
                    record(sign={"enum": ["+", "-"]}, left=whole(0, 9), right=ref("term")),
                ]
            }
        }
    },
    "a shape": {
        "oneOf": [
            tagged("circle", radius=real(0, 10)),
            tagged("square", side=real(0, 10)),
            tagged("line", points=some(PLACE, 2, 2)),
        ]
    },
    "an event": {
        "anyOf": [
            tagged("click", x=whole(0, 1920), y=whole(0, 1080)),
            tagged("key", key=text("^[a-z]$")),
        ]
    },
    "an appointment": record(day=written("date"), begin=written("time"), minutes=whole(5, 90)),
    "a duration": record(task=WORD, takes=written("duration")),
    "a host": record(name=WORD, ipv4=written("ipv4"), port=whole(1, 65535)),
    "an identity": record(id=written("uuid"), admin=FLAG),
    "a colour": record(hex=text("^#[0-9a-f]{6}$"), alpha=real(0, 1)),
    "a version": record(package=WORD, version=text(r"^[0-9]{1,2}\.[0-9]{1,2}\.[0-9]{1,2}$")),
    "a phone": record(number=text(r"^\+[1-9][0-9]{5,11}$"), kind={"enum": ["home", "work"]}),
    "a plate": text("^[A-Z]{1,3}-[A-Z]{1,2} [1-9][0-9]{0,3}$"),
    "a search": record(query=WORD, filters=objects({"year": whole(1900, 2030), "open": FLAG})),
    "a range": record(least=whole(0, 99), most=whole(0, 99), step={"const": 1}),
    "a product": record(name=WORD, price=AMOUNT, sizes=some({"enum": ["S", "M", "L"]}, 3)),
    "counters": {
        "type": "object",
        "patternProperties": {"^[a-z]{1,6}$": whole(0, 99)},
        "additionalProperties": False,
        "maxProperties": 3,
    },
    "settings": {
        "type": "object",
        "properties": {"theme": {"enum": ["dark", "light"]}, "size": whole(8, 32)},
        "dependentRequired": {"theme": ["size"]},
        "additionalProperties": False,
    },
    "a payment": {
        **objects({"by": {"enum": ["card", "cash"]}, "card": text("^[0-9]{16}$")}, ("by",)),
        "if": {"properties": {"by": {"const": "card"}}},
        "then": {"required": ["card"]},
    },
    "an answer with reasons": record(steps=some(record(thought=WORD), 2, 1), answer=WORD),
    "a translation": record(source={"const": "en"}, target={"enum": ["de", "fr"]}, text=WORD),
    "a grade": record(points=whole(0, 100), grade={"enum": ["A", "B", "C", "D", "E", "F"]}),
    "a measurement": record(value=real(-50, 50, 0.5), unit={"enum": ["°C", "°F"]}),
    "a date in parts": record(year=whole(1900, 2100), month=whole(1, 12), day=whole(1, 31)),
    "a file": record(path=text("^(/[a-z]{1,6}){1,3}$"), bytes=whole(0, 4096), hidden=FLAG),
    "a merged one": {
        "allOf": [
            {"type": "object", "properties": {"id": whole(1, 99)}, "required": ["id"]},
            {"properties": {"name": WORD}, "required": ["name"]},
        ],
        "unevaluatedProperties": False,
    },
    "a menu": record(courses=some(record(dish=WORD, vegan=FLAG, price=whole(3, 40)), 3, 1)),
}  # fmt: skip


class Unit(StrEnum):
    METRE = "m"
    FOOT = "ft"


Word = Annotated[str, Field(max_length=12)]


class Height(BaseModel):
    value: Annotated[float, Field(ge=0, le=9000, multiple_of=0.5)]
    unit: Unit


class Mountain(BaseModel):
    """A mountain with its height."""

    name: Word
    height: Height
    first_climbed: date | None


class Step(BaseModel):
    explanation: Word
    result: Annotated[int, Field(ge=-99, le=99)]


class Solution(BaseModel):
    steps: Annotated[list[Step], Field(min_length=1, max_length=2)]
    answer: Annotated[int, Field(ge=-999, le=999)]


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: Annotated[int, Field(ge=1, le=9)]


class Dog(BaseModel):
    kind: Literal["dog"]
    breed: Word


class Owner(BaseModel):
    name: Word
    pet: Cat | Dog


class Folder(BaseModel):
    name: Annotated[str, Field(pattern="^[a-z]{1,6}$")]
    folders: Annotated[list[Folder], Field(max_length=1)]


class Article(BaseModel):
    title: Word
    tags: Annotated[list[Literal["news", "opinion"]], Field(max_length=2)]
    stars: Literal[1, 2, 3]


class Reminder(BaseModel):
    text: Word
    due: date
    urgent: bool


class Vote(BaseModel):
    party: Literal["red", "green", "blue"]
    share: Annotated[float, Field(ge=0, le=100, multiple_of=0.1)]


class Point(BaseModel):
    x: Annotated[int, Field(ge=-9, le=9)]
    y: Annotated[int, Field(ge=-9, le=9)]


class Route(BaseModel):
    points: Annotated[list[Point], Field(min_length=2, max_length=4)]
    closed: bool


class Contact(BaseModel):
    name: Word
    mail: Annotated[str, Field(pattern=r"^[a-z]{1,8}@[a-z]{2,8}\.(com|org)$")] | None


class Invoice(BaseModel):
    number: Annotated[str, Field(pattern="^[0-9]{6}$")]
    total: Annotated[float, Field(gt=0, lt=10_000, multiple_of=0.01)]
    status: Literal["open", "paid", "late"]


CLASSES: tuple[type[BaseModel], ...] = (
    Mountain,
    Solution,
    Owner,
    Folder,
    Article,
    Reminder,
    Vote,
    Route,
    Contact,
    Invoice,
)
