"""The format of regular expressions: all of it is what it says."""

from __future__ import annotations

import random
import re

from octavo.guided.schema.formats import _parsed


def test_what_is_written_as_a_regular_expression_is_one() -> None:
    """Random texts of the format, as far as Python reads them as ECMA-262 does."""
    chance = random.Random(0)
    num_tried = 0
    for _ in range(400):
        node, text = _parsed("regex"), ""
        for _ in range(chance.randrange(30)):
            if not node.steps:
                break
            label, node = chance.choice(node.steps)
            text += chr(chance.choice(chance.choice(label.ranges)))
            if node.nullable and not re.search(r"\[\^?\]|\\[cu]|\[[^\]]*\[|\(\?<", text):
                re.compile(text)
                num_tried += 1
    assert num_tried > 500
