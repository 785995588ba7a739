"""The letters that complete a generated name: chance, and nothing else."""

from __future__ import annotations

import random

from master.writing.writes import NAME_LETTERS


def random_letters() -> str:
    """Five of them."""
    return "".join(random.choices(NAME_LETTERS, k=5))
