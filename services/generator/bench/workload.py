"""What one run of a bench does, and the requests it is made of. Pure: seeded, no clock."""

import random
from collections.abc import Iterator
from typing import Annotated, Final, Literal

import msgspec

Cache = Literal["cold", "warm"]

_LINES: Final = (
    "the and for are but not you all can her was one our out day get has him his how man new now old see two way who",
    "boy did its let put say she too use air big box car cut dog ear eat end eye far few fly fun god got hot job key",
    "law leg lie lot map may men met net oil own pay red run sea set sit six sky son sun tax ten top try war win yes",
)
WORDS: Final = tuple(word for line in _LINES for word in line.split())
"""Three letters each: with the space before it one token for usual tokenizers, and four characters."""

ASKED: Final = " Write the text above again, word for word:"
"""Repetition is what drafting from the prompt lives on, as in quoting, editing and summaries."""

SHARED: Final = 0.8
"""Share of a warm prompt that all have in common."""


class Cell(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Closed loop: ``batch`` equal requests at once, one set after another.

    Attributes:
        batch: Requests at once.
        prompt: Tokens of each prompt, about.
        repeats: Sets.
    """

    batch: Annotated[int, msgspec.Meta(ge=1, le=256)]
    prompt: Annotated[int, msgspec.Meta(ge=1, le=32_768)]
    repeats: Annotated[int, msgspec.Meta(ge=1, le=100)]


class Stream(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Open loop: requests come when they come, whether the engine is ready for them or not.

    Attributes:
        cache: ``warm``: the prompts begin alike, and that beginning was read before.
        rate: Requests a second; the times between them are exponential.
        requests: How many.
        prompt: Tokens of each prompt, about.
    """

    cache: Cache
    rate: Annotated[float, msgspec.Meta(gt=0, le=1_000)]
    requests: Annotated[int, msgspec.Meta(ge=1, le=2_000)]
    prompt: Annotated[int, msgspec.Meta(ge=1, le=32_768)]


class Workload(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One run.

    Attributes:
        engine: Which one.
        cells: Closed loops.
        streams: Open loops.
        output: Tokens of each answer, at most.
        temperature: Of sampling; 0 is greedy.
        seed: Of prompts, arrivals and sampling.
        request_s: A request that takes longer has failed.
        limit_s: After that nothing new is begun.
    """

    engine: str
    cells: Annotated[tuple[Cell, ...], msgspec.Meta(max_length=64)]
    streams: Annotated[tuple[Stream, ...], msgspec.Meta(max_length=8)]
    output: Annotated[int, msgspec.Meta(ge=2, le=4_096)]
    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)]
    seed: Annotated[int, msgspec.Meta(ge=0, le=2**31)]
    request_s: Annotated[float, msgspec.Meta(gt=0, le=600)]
    limit_s: Annotated[float, msgspec.Meta(gt=0, le=7_200)]


def prompt(tokens: int, draw: random.Random, *, beginning: str = "") -> str:
    """About so many tokens of words, after a beginning that others may share; the same draw gives the same."""
    missing = max(1, tokens - (len(beginning) + len(ASKED)) // 4)
    return beginning + " ".join(draw.choice(WORDS) for _ in range(missing)) + ASKED


def shared_beginning(tokens: int, seed: int) -> str:
    """What all warm prompts of this length begin with."""
    draw = random.Random(f"{seed}:{tokens}:shared")  # noqa: S311 - it must be repeatable
    return "".join(draw.choice(WORDS) + " " for _ in range(int(tokens * SHARED)))


def prompts(stream: Stream, seed: int) -> Iterator[str]:
    """One a request."""
    draw = random.Random(f"{seed}:{stream.cache}:{stream.prompt}")  # noqa: S311 - it must be repeatable
    beginning = shared_beginning(stream.prompt, seed) if stream.cache == "warm" else ""
    for _ in range(stream.requests):
        yield prompt(stream.prompt, draw, beginning=beginning)


def arrivals_s(stream: Stream, seed: int) -> Iterator[float]:
    """When each request comes, in seconds since the start: a Poisson process."""
    draw = random.Random(f"{seed}:{stream.rate}:arrivals")  # noqa: S311 - it must be repeatable
    at = 0.0
    for _ in range(stream.requests):
        at += draw.expovariate(stream.rate)
        yield at
