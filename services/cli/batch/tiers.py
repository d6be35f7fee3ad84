"""Configuration of a cascade of models: how answers are scored, and which lines each model answers."""

import math
import random
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Final

import msgspec
import orjson

from services.cli.batch.cel_score import cel_scorer, finite
from services.runtime.errors import UserError

SAMPLE_SEED: Final = 0
"""Seed of the sample. The sample is the same each time, so that an interrupted cascade can continue."""

Share = Annotated[float, msgspec.Meta(gt=0, le=1)]
Positive = Annotated[float, msgspec.Meta(gt=0)]


class Score(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How answers are scored. A higher score is better. Exactly one of ``regex``, ``json`` and ``cel`` must be set.

    Attributes:
        regex: A regular expression. The first group of its last match is the score.
        json: Path of the score in an answer that is JSON, such as ``rating.total``.
        cel: An expression in the Common Expression Language whose value is the score.
        sample: Number of random lines with which the second and every later model begins. The answers to these lines
            show what a line costs, and how well the scores agree with the scores of the previous model.
    """

    regex: str | None = None
    json: str | None = None
    cel: Annotated[str, msgspec.Meta(min_length=1, max_length=10_000)] | None = None
    sample: Annotated[int, msgspec.Meta(ge=3, le=10_000)] = 100


class Budget(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The hours and US dollars that a whole cascade (see ``Tier``) may use. None means no limit."""

    hours: Positive | None = None
    usd: Positive | None = None  # tiers without a price do not count


class Tier(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One model of a cascade.

    A cascade finds the best lines of a file. Each answer of a model gets a score. Only the lines whose answers
    have high scores go on to the next model.

    Attributes:
        keep: How large a share of all lines this model gets. The budget can lower this share. The first model answers
            all lines, so its ``keep`` is 1.
        price: Name of an API in the price list of ``railbus plan batch``; None if there is no price.
    """

    model: Annotated[str, msgspec.Meta(min_length=1)]
    keep: Share = 1.0
    price: str | None = None


class Tiers(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    score: Score
    tier: Annotated[tuple[Tier, ...], msgspec.Meta(min_length=2, max_length=8)]
    budget: Budget = Budget()


def read_tiers(path: Path) -> Tiers:
    try:
        tiers = msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), Tiers)
        check_tiers(tiers)
    except (OSError, ValueError) as error:  # msgspec's and tomllib's errors are ValueErrors, too
        raise UserError(f"--tiers {path}: {getattr(error, 'strerror', None) or error}") from None
    except (re.error, OverflowError) as error:  # the latter for a repetition such as {9999999999}
        raise UserError(f"--tiers {path}: score.regex: {error}") from None
    return tiers


def check_tiers(tiers: Tiers) -> None:
    score = tiers.score
    if sum(each is not None for each in (score.regex, score.json, score.cel)) != 1:
        raise ValueError("score needs one of regex, json and cel")
    if score.regex is not None and re.compile(score.regex).groups < 1:
        raise ValueError("score.regex needs a group around the number, such as 'Score: ([0-9]+)'")
    scorer_of(score)
    if tiers.tier[0].keep != 1:
        raise ValueError("the first tier answers everything: leave its keep out")
    keeps = [tier.keep for tier in tiers.tier]
    if any(later >= earlier for earlier, later in pairwise(keeps)):
        raise ValueError("keep must fall from tier to tier")


Scorer = Callable[[str], float | None]
"""Maps an answer to its score; None if the answer has none."""


def scorer_of(score: Score) -> Scorer:
    if score.regex is not None:
        return partial(_by_regex, re.compile(score.regex))
    if score.json is not None:
        return partial(_by_path, score.json.split("."))
    return cel_scorer(score.cel or "")


def _by_regex(pattern: re.Pattern[str], answer: str) -> float | None:
    found = None
    for match in pattern.finditer(answer):
        found = match[1]
    return finite(found)


def _by_path(path: Sequence[str], answer: str) -> float | None:
    try:
        found = orjson.loads(answer)
        for name in path:
            found = found[name]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return None
    return None if isinstance(found, bool) else finite(found)


def best(scores: Mapping[str, float], count: int) -> list[str]:
    return sorted(scores, key=lambda name: -scores[name])[: max(0, count)]


def sampled(names: Sequence[str], count: int) -> list[str]:
    """Return a random sample of ``count`` names, in their original order. Equal input gives the same sample."""
    chosen = random.Random(SAMPLE_SEED).sample(range(len(names)), min(count, len(names)))  # noqa: S311 - repeatable
    return [names[number] for number in sorted(chosen)]


def affordable(
    wanted: int, budget: Budget, *, spent_h: float, spent_usd: float, seconds_each: float, usd_each: float
) -> int:
    """Return the number of lines, at most ``wanted``, that the remaining budget pays for."""
    limits = [float(wanted)]
    for limit, spent, each in (
        (budget.hours, spent_h, seconds_each / 3_600),
        (budget.usd, spent_usd, usd_each),
    ):
        if limit is not None and spent >= limit:
            return 0
        if limit is not None and each > 0:
            limits.append((limit - spent) / each)
    return max(0, math.floor(min(limits) + 1e-9))
