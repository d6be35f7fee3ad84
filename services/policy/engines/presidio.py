"""Find personal data with Presidio's recognizers, without a language model and without network access.

The recognizers find phone numbers of some countries, and numbers with a valid checksum.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from typing import Any, Final

from presidio_analyzer import predefined_recognizers as recognizers

from services.policy.rulings import FoundSpan

logging.getLogger("presidio-analyzer").setLevel(logging.WARNING)  # below that it logs each recognizer that it loads

PHONE_REGIONS: Final = ("US", "GB", "DE", "FR", "ES", "IT", "IN", "BR")
_VALID_NUMBER: Final = 1
"""The leniency level of ``phonenumbers`` that accepts valid numbers, in the formats that people use."""

_CHECKSUM_HOLDS: Final = 0.99
"""Minimum score of a finding. Presidio's score is 1 for a number with a verified checksum."""

_CATEGORIES: Final = {
    "CryptoRecognizer": "bank_account",
    "EsNieRecognizer": "national_id",
    "EsNifRecognizer": "national_id",
    "InAadhaarRecognizer": "national_id",
    "ItFiscalCodeRecognizer": "national_id",
    "PlPeselRecognizer": "national_id",
}
"""The category of the findings of each recognizer that verifies a checksum."""

SLICE_CHARS: Final = 704
"""Number of characters that are read at a time. For prose, this takes one or two milliseconds.

A window of tier 2 is one slice.
"""

DENSE_SLICE_CHARS: Final = 224
"""Number of characters that are read at a time in text that is expensive to read.

The phone numbers of each country are looked for in a step of their own, and all other numbers in one more. For only
digits, a step takes up to 2 ms.
"""

DENSE_DIGITS: Final = 128
"""Minimum number of digits in a slice for which its text counts as expensive to read."""

OVERLAP_CHARS: Final = 64
"""Number of characters that two neighbouring slices share. It is longer than any recognized span."""


def slices(text: str) -> Iterator[tuple[int, int, bool]]:
    """Divide a text into slices. For each slice, yield its start, its end, and whether it has many digits.

    Neighbouring slices share ``OVERLAP_CHARS`` characters.
    """
    begin = end = 0
    while end < max(len(text), 1):
        end = begin + SLICE_CHARS
        is_dense = sum(map(str.isdigit, text[begin:end])) >= DENSE_DIGITS
        if is_dense:
            end = begin + DENSE_SLICE_CHARS
        yield begin, end, is_dense
        begin = end - OVERLAP_CHARS


class Presidio:
    def __init__(self) -> None:
        phones = [
            recognizers.PhoneRecognizer(supported_regions=(region,), leniency=_VALID_NUMBER) for region in PHONE_REGIONS
        ]
        numbers = [(getattr(recognizers, name)(), category) for name, category in _CATEGORIES.items()]
        self._steps: tuple[Callable[[str], list[FoundSpan]], ...] = (
            *(partial(_find_phones, recognizer) for recognizer in phones),
            partial(_find_numbers, numbers),
        )
        self._find("030 901820")  # loads each country's number formats, which takes a tenth of a second

    async def find(
        self, text: str, turn: Callable[[], AbstractAsyncContextManager[object]] = nullcontext
    ) -> list[FoundSpan]:
        """Return what the recognizers find, in the order of the text. The recognizers run in a thread.

        Args:
            text: The text.
            turn: Called before each short step of the search. Returns the context manager inside which the step runs,
                such as a lock.
        """
        # If all calls get the same lock from ``turn``, their steps alternate.
        found: list[FoundSpan] = []
        for begin, end, is_dense in slices(text):
            for step in self._steps if is_dense else (self._find,):
                async with turn():
                    spans = await asyncio.to_thread(step, text[begin:end])
                found += [one._replace(start=begin + one.start, end=begin + one.end) for one in spans]
        return sorted(without_contained(found), key=lambda one: (one.start, one.end, one.rule))

    def _find(self, text: str) -> list[FoundSpan]:
        return [one for step in self._steps for one in step(text)]


def without_contained(spans: Iterable[FoundSpan]) -> Iterator[FoundSpan]:
    """Yield the distinct spans that do not lie inside a longer span of the same rule."""
    # A number may be found for several countries, and its end again in the next slice.
    ends: dict[str, int] = {}
    for one in sorted(set(spans), key=lambda one: (one.start, -one.end)):
        if one.end > ends.get(one.rule, -1):
            ends[one.rule] = one.end
            yield one


def _find_phones(recognizer: Any, text: str) -> list[FoundSpan]:
    return [
        FoundSpan("presidio/phone_number", "phone", one.start, one.end)
        for one in recognizer.analyze(text, ["PHONE_NUMBER"])
    ]


def _find_numbers(numbers: list[tuple[Any, str]], text: str) -> list[FoundSpan]:
    found: list[FoundSpan] = []
    for recognizer, category in numbers:
        entity = recognizer.supported_entities[0]
        certain = [one for one in recognizer.analyze(text, [entity]) if one.score >= _CHECKSUM_HOLDS]
        found += [FoundSpan(f"presidio/{entity.lower()}", category, one.start, one.end) for one in certain]
    return found
