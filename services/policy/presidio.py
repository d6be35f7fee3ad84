"""Presidio's recognizers, for policies that name ``presidio``.

Used without an NLP engine: no model, no network. Phone numbers as each country writes them, and numbers whose checksum
holds; recognizers that need context to be sure are left out. Heavy: imported only where texts are read.
"""

import asyncio
import logging
from typing import Any, Final, NamedTuple

from presidio_analyzer import predefined_recognizers as recognizers

logging.getLogger("presidio-analyzer").setLevel(logging.WARNING)  # below that it tells of each recognizer it loads

PHONE_REGIONS: Final = ("US", "GB", "DE", "FR", "ES", "IT", "IN", "BR")
_VALID_NUMBER: Final = 1
"""phonenumbers' leniency: numbers that exist, written as people write them."""

_CHECKSUM_HOLDS: Final = 0.99
"""Presidio's score of a number whose checksum was verified is 1."""

_CATEGORIES: Final = {
    "CryptoRecognizer": "bank_account",
    "EsNieRecognizer": "national_id",
    "EsNifRecognizer": "national_id",
    "InAadhaarRecognizer": "national_id",
    "ItFiscalCodeRecognizer": "national_id",
    "PlPeselRecognizer": "national_id",
}
"""Recognizer with a checksum -> category of its finding."""

SLICE_CHARS: Final = 2_000
OVERLAP_CHARS: Final = 64
"""Longer than anything that is recognized."""


class Found(NamedTuple):
    """Something that was recognized.

    Attributes:
        rule: The recognizer, such as ``presidio/phone_number``.
        category: What Rego decides by.
        start: First code point of the span.
        end: One past the last.
    """

    rule: str
    category: str
    start: int
    end: int


class Presidio:
    """Stateless; looks at a slice at a time in a thread, a few milliseconds each."""

    def __init__(self) -> None:
        self._phones: Any = recognizers.PhoneRecognizer(supported_regions=PHONE_REGIONS, leniency=_VALID_NUMBER)
        self._numbers: tuple[tuple[Any, str], ...] = tuple(
            (getattr(recognizers, name)(), category) for name, category in _CATEGORIES.items()
        )
        self._find("030 901820")  # reads what is known of each country's numbers: a tenth of a second

    async def find(self, text: str) -> list[Found]:
        """What the recognizers find, in the order of the text."""
        found: set[Found] = set()
        for begin in range(0, max(len(text) - OVERLAP_CHARS, 1), SLICE_CHARS - OVERLAP_CHARS):
            for one in await asyncio.to_thread(self._find, text[begin : begin + SLICE_CHARS]):
                found.add(one._replace(start=begin + one.start, end=begin + one.end))
        return sorted(found, key=lambda one: (one.start, one.end, one.rule))

    def _find(self, text: str) -> list[Found]:
        phones = self._phones.analyze(text, ["PHONE_NUMBER"])
        found = [Found("presidio/phone_number", "phone", one.start, one.end) for one in phones]
        for recognizer, category in self._numbers:
            entity = recognizer.supported_entities[0]
            certain = [one for one in recognizer.analyze(text, [entity]) if one.score >= _CHECKSUM_HOLDS]
            found += [Found(f"presidio/{entity.lower()}", category, one.start, one.end) for one in certain]
        return found
