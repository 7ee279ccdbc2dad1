"""What the conformance kit tries the decoder and the model with."""

from __future__ import annotations

import numpy as np

from octavo.testing.modality import ModalitySamples
from octavo.testing.variants import MediaExample, Variant
from octavo_tables.decoder import Table

SHAPES = ((3, 2), (7, 1), (1, 4), (12, 3))
TOKEN = 150


def table(shape: int, seed: int) -> Table:
    """A table of one size for a shape, and of other numbers for each seed."""
    rows, columns = SHAPES[shape]
    cells = np.random.default_rng((shape, seed)).normal(0, 100, (rows, columns))
    return Table(tuple(f"c{number}" for number in range(columns)), cells.astype(np.float32))


def samples() -> ModalitySamples:
    """Files and objects."""
    return ModalitySamples(
        encoded={"a CSV": b"year,height\n1970,1.5\n1980,-2e3\n", "one column": b"x\n1\n2\n3"},
        given={"a Table": table(0, 0), "columns": {"year": [1970, 1980], "height": [1.5, 2.5]}},
        broken={
            "names alone": b"year,height\n",
            "a row that is short": b"a,b\n1,2\n3\n",
            "text in a cell": b"a,b\n1,two\n",
            "a number that is none": b"a\nnan\n",
            "zeros": bytes(100),
        },
        bombs={"a million cells": b"a\n" + b"," * 1_000_000},
    )


VARIANTS = {
    "tables": Variant(
        config={"table_token_id": TOKEN, "max_position_embeddings": 1024},
        media={"table": MediaExample(tokens=(TOKEN,), make=table)},
    )
}
