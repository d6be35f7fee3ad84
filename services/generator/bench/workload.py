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
"""Words of three letters. Each word with its space has four characters, and is one token in common tokenizers."""

REPEAT_INSTRUCTION: Final = " Write the text above again, word for word:"
"""Last sentence of each prompt. It makes the answer repeat the prompt, as an answer that quotes or edits a text does.
Drafting from the prompt helps only with such answers."""

SHARED_PREFIX_SHARE: Final = 0.8
"""Length of the prefix that all warm prompts share, as a fraction of the prompt's length."""


class ClosedLoop(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A closed loop: send several requests at once, wait until all of them have ended, and repeat.

    Attributes:
        batch: Number of requests that are sent at once.
        prompt: Approximate number of tokens of each prompt.
        repeats: How many times the loop sends ``batch`` requests.
    """

    batch: Annotated[int, msgspec.Meta(ge=1, le=256)]
    prompt: Annotated[int, msgspec.Meta(ge=1, le=32_768)]
    repeats: Annotated[int, msgspec.Meta(ge=1, le=100)]


class OpenLoop(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An open loop: send requests at random times, whether or not earlier requests have ended.

    Attributes:
        cache: With ``warm``, the prompts share a prefix that is already in the engine's KV cache. With ``cold``, the
            prompts share no prefix.
        rate: Mean number of requests per second. The intervals are exponentially distributed.
        prompt: Approximate number of tokens of each prompt.
    """

    cache: Cache
    rate: Annotated[float, msgspec.Meta(gt=0, le=1_000)]
    requests: Annotated[int, msgspec.Meta(ge=1, le=2_000)]
    prompt: Annotated[int, msgspec.Meta(ge=1, le=32_768)]


class SampleLoop(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A loop over given prompts. Whenever a request ends, the next prompt is sent.

    Attributes:
        at_once: Number of concurrent requests.
        output: Maximum number of tokens of each answer.
    """

    prompts: Annotated[tuple[str, ...], msgspec.Meta(min_length=1, max_length=2_000)]
    at_once: Annotated[int, msgspec.Meta(ge=1, le=256)]
    output: Annotated[int, msgspec.Meta(ge=2, le=4_096)]


class Workload(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one benchmark sends to an engine.

    Attributes:
        output: Maximum number of tokens of each answer.
        temperature: Sampling temperature; 0 is greedy.
        seed: Seed for prompts, arrival times and sampling.
        request_s: Timeout of a request, in seconds.
        limit_s: Seconds after which no more requests are sent.
    """

    engine: str
    cells: Annotated[tuple[ClosedLoop, ...], msgspec.Meta(max_length=64)]
    streams: Annotated[tuple[OpenLoop, ...], msgspec.Meta(max_length=8)]
    output: Annotated[int, msgspec.Meta(ge=2, le=4_096)]
    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)]
    seed: Annotated[int, msgspec.Meta(ge=0, le=2**31)]
    request_s: Annotated[float, msgspec.Meta(gt=0, le=600)]
    limit_s: Annotated[float, msgspec.Meta(gt=0, le=7_200)]
    samples: Annotated[tuple[SampleLoop, ...], msgspec.Meta(max_length=16)] = ()


def prompt(tokens: int, rng: random.Random, *, beginning: str = "") -> str:
    """Return a prompt of about ``tokens`` tokens. It starts with ``beginning`` and continues with random words."""
    missing = max(1, tokens - (len(beginning) + len(REPEAT_INSTRUCTION)) // 4)
    return beginning + " ".join(rng.choice(WORDS) for _ in range(missing)) + REPEAT_INSTRUCTION


def shared_prefix(tokens: int, seed: int) -> str:
    rng = random.Random(f"{seed}:{tokens}:shared")  # noqa: S311 - it must be repeatable
    return "".join(rng.choice(WORDS) + " " for _ in range(int(tokens * SHARED_PREFIX_SHARE)))


def prompts(stream: OpenLoop, seed: int) -> Iterator[str]:
    rng = random.Random(f"{seed}:{stream.cache}:{stream.prompt}")  # noqa: S311 - it must be repeatable
    beginning = shared_prefix(stream.prompt, seed) if stream.cache == "warm" else ""
    for _ in range(stream.requests):
        yield prompt(stream.prompt, rng, beginning=beginning)


def arrivals_s(stream: OpenLoop, seed: int) -> Iterator[float]:
    """Yield the due times of the requests of an open loop, in seconds since its start: a Poisson process."""
    rng = random.Random(f"{seed}:{stream.rate}:arrivals")  # noqa: S311 - it must be repeatable
    at = 0.0
    for _ in range(stream.requests):
        at += rng.expovariate(stream.rate)
        yield at
