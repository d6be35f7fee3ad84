"""What a simulated answer is made to do, for load and fault tests: written as a suffix of the model's name.

``simulated-n50-die10`` answers with 50 tokens and breaks off after 10 steps. The parts, in any order::

    n<k>      k tokens, unless max_tokens ends it sooner
    slow<ms>  the first token that much later
    tail<ms>  the first token later by a heavy-tailed time (Lomax, shape 1.5) of this scale
    mute      no token, ever
    stall<k>  silence after k steps, for ever
    die<k>    breaks off after k steps (k = 0: before the first)
    dead<k>   the whole engine dies after k steps
    err<code> refuses with this HTTP status
    poison<k> token k is the word FORBIDDEN
    mail<k>   token k is an e-mail address
    leak<k>   token k is the code name that the default policy's blocklist has as its example
"""

import random
import re
from dataclasses import dataclass, fields
from typing import Final

_PART: Final = re.compile(r"([a-z]+)(\d{0,7})")
_SHAPE: Final = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """Parts as above; None where the suffix says nothing."""

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

    def delay_ms(self, draw: random.Random) -> float:
        """How much later the first token comes."""
        delay = float(self.slow or 0)
        if self.tail:
            delay += self.tail * ((1 - draw.random()) ** (-1 / _SHAPE) - 1)
        return delay

    def word(self, place: int) -> str | None:
        """What token ``place`` is made to be; None leaves it to chance."""
        wanted = (
            (self.poison, "FORBIDDEN"),
            (self.mail, "anna.berg@example.org"),
            (self.leak, "Project Bluefin Heron"),
        )
        return next((word for token, word in wanted if token == place), None)

    def silent_from(self) -> int | None:
        """The step from which on nothing comes any more."""
        return 0 if self.mute is not None else self.stall


def parse(text: str) -> Script:
    """The script in a suffix.

    Raises:
        ValueError: A part is not known; the message names it.
    """
    known = {field.name for field in fields(Script)}
    parts: dict[str, int] = {}
    for part in filter(None, text.split("-")):
        match = _PART.fullmatch(part)
        if match is None or match[1] not in known or bool(match[2]) == (match[1] == "mute"):
            raise ValueError(
                f"{part!r} is no part of a script; parts are {', '.join(sorted(known))}, each with a number"
            )
        parts[match[1]] = int(match[2] or 0)
    return Script(**parts)
