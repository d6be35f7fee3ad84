"""Make prompts that all differ, and the arrival times of an open loop. This module does no I/O and reads no clock."""

import math
import random
from collections.abc import Iterator
from typing import Final

SAME_PROMPT: Final = "hello, tell me a story"

MEDIAN_WORDS: Final = 60
SPREAD: Final = 0.9
"""Standard deviation of the logarithm of a prompt's length. One prompt in twenty is over four times the median."""

FEWEST_WORDS, MOST_WORDS = 8, 1_500

_SUBJECTS = (
    "our support desk", "the library", "a small bakery", "the weather station", "my neighbour", "the school",
    "the printer in room nine", "a freight train", "the garden club", "the museum", "the evening shift",
    "a sailing boat", "the water works", "the town council", "an orchestra", "the bicycle workshop",
)  # fmt: skip
_VERBS = (
    "closed", "repaired", "counted", "planned", "described", "painted", "ordered", "compared", "moved", "sorted",
    "measured", "cleaned", "collected", "returned", "weighed", "numbered",
)  # fmt: skip
_OBJECTS = (
    "tickets", "windows", "letters", "loaves of bread", "maps", "chairs", "lamps", "books", "timetables", "apples",
    "bridges", "stamps", "invoices", "photographs", "benches", "rain gauges",
)  # fmt: skip
_ENDS = (
    "before lunch", "in the second week of March", "without any help", "after the storm", "for the third time",
    "with a new method", "on a quiet Sunday", "during the move", "in front of the station", "as agreed last year",
)  # fmt: skip
_TASKS = (
    "Summarise this in three sentences.", "Which of these took longest, and why?", "Write a short report about it.",
    "What would you ask next?", "Put this in order and explain the order.", "Tell it as a story for children.",
)  # fmt: skip


def prompt(seed: int, number: int) -> str:
    """Return a prompt of a realistic length. Different seeds or numbers give different prompts."""
    dice = random.Random(f"{seed}/{number}")
    words = min(MOST_WORDS, max(FEWEST_WORDS, round(math.exp(dice.gauss(math.log(MEDIAN_WORDS), SPREAD)))))
    sentences = [f"This is note {number} of folder {seed}."]
    while sum(sentence.count(" ") + 1 for sentence in sentences) < words:
        subject, verb, thing, end = (dice.choice(among) for among in (_SUBJECTS, _VERBS, _OBJECTS, _ENDS))
        sentences.append(f"{subject.capitalize()} {verb} {dice.randrange(2, 90)} {thing} {end}.")
    return " ".join([*sentences, dice.choice(_TASKS)])


def poisson_arrivals(rate_per_s: float, count: int, seed: int) -> Iterator[float]:
    """Yield the arrival times of a Poisson process, in seconds from its start."""
    dice = random.Random(seed)
    at_s = 0.0
    for _ in range(count):
        at_s += dice.expovariate(rate_per_s)
        yield at_s
