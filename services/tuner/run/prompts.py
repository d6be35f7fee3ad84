"""Generate prompts from a seed."""

import random
from typing import Final

WORDS: Final = (
    "river", "stone", "light", "harbour", "winter", "letter", "garden", "number", "signal", "window", "engine", "paper",
    "valley", "copper", "morning", "bridge", "orchard", "pencil", "shadow", "thread", "market", "island", "silver",
)  # fmt: skip

INSTRUCTION: Final = "\nWrite these words again, in the same order, many times."


def prompts(count: int, *, tokens: int, shared: float, seed: str) -> list[str]:
    """Return ``count`` prompts of about ``tokens`` tokens each.

    ``shared`` is the length of the prefix that all prompts have in common, as a share of a prompt.
    """
    common = random.Random(f"shared:{tokens}")  # noqa: S311 - it must be repeatable
    own = random.Random(f"own:{seed}")  # noqa: S311 - it must be repeatable
    words = max(2, tokens - len(INSTRUCTION) // 4)
    beginning = [common.choice(WORDS) for _ in range(int(words * shared))]
    return [
        " ".join([*beginning, *(own.choice(WORDS) for _ in range(words - len(beginning)))]) + INSTRUCTION
        for _ in range(count)
    ]
