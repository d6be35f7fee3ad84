"""Scripts that say how a simulated answer behaves, for load and fault tests.

A request appends its script to the model's name. The model ``simulated-n50-die10`` begins an answer of 50 tokens, and
fails after 10 steps. The parts of a script may come in any order::

    n<k>      generate k tokens, or max_tokens if that is less
    slow<ms>  delay the first token by this time
    tail<ms>  delay the first token by a random time (Lomax distribution with shape 1.5 and this scale)
    mute      generate no token, and leave the answer unfinished for ever
    stall<k>  generate nothing after k steps, and leave the answer unfinished for ever
    die<k>    fail after k steps (k = 0: before the first)
    dead<k>   make the whole engine die after k steps
    err<code> refuse with this HTTP status
    poison<k> make token k the word FORBIDDEN
    mail<k>   make token k an e-mail address
    leak<k>   make token k the example code name in the blocklist of the default policy

The number of the first token is 0.
"""

import random
import re
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Final

_PART: Final = re.compile(r"([a-z]+)(\d{0,7})")
_LOMAX_SHAPE: Final = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultScript:
    """A parsed script. ``n50-die10`` gives ``n=50`` and ``die=10``, and leaves all other attributes None.

    The part ``mute`` has no number and gives ``mute=0``.
    """

    n: int | None = None
    slow: int | None = None
    tail: int | None = None
    mute: int | None = None
    stall: int | None = None
    die: int | None = None
    dead: int | None = None
    err: int | None = None
    poison: int | None = None
    mail: int | None = None
    leak: int | None = None

    def delay_ms(self, rng: random.Random) -> float:
        delay = float(self.slow or 0)
        if self.tail:
            delay += self.tail * ((1 - rng.random()) ** (-1 / _LOMAX_SHAPE) - 1)
        return delay

    def word(self, position: int) -> str | None:
        """Return the word that the script sets for the token at ``position``; None if it sets none."""
        words = (
            (self.poison, "FORBIDDEN"),
            (self.mail, "anna.berg@example.org"),
            (self.leak, "Project Bluefin Heron"),
        )
        return next((word for scripted, word in words if scripted == position), None)

    def silent_from(self) -> int | None:
        """Return the number of steps after which the answer stalls for ever; None if it does not stall."""
        return 0 if self.mute is not None else self.stall


_KNOWN: Final = frozenset(field.name for field in fields(FaultScript))


@lru_cache(maxsize=64)
def parse_script(text: str) -> FaultScript:
    """Parse a script, such as ``n50-die10``.

    Raises:
        ValueError: The message names the part of the script that is not valid.
    """
    parts: dict[str, int] = {}
    for part in filter(None, text.split("-")):
        match = _PART.fullmatch(part)
        if match is None or match[1] not in _KNOWN or bool(match[2]) == (match[1] == "mute"):
            raise ValueError(
                f"{part!r} is not a part of a script; the parts are {', '.join(sorted(_KNOWN))}, each with a number"
            )
        parts[match[1]] = int(match[2] or 0)
    return FaultScript(**parts)
