"""Presidio's recognizers on a window: phone numbers as each country writes them, and numbers with a checksum.

The recognizers are used without an NLP engine: no model, no network. Those that need context to be sure are left out.
"""

import asyncio
from typing import Any, Final

from presidio_analyzer import predefined_recognizers as recognizers

from services.safety.looks import Spot

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


class PresidioCheck:
    """Stateless; its work is done in a thread, a millisecond or two a window."""

    def __init__(self) -> None:
        self._phones: Any = recognizers.PhoneRecognizer(supported_regions=PHONE_REGIONS, leniency=_VALID_NUMBER)
        self._numbers: tuple[tuple[Any, str], ...] = tuple(
            (getattr(recognizers, name)(), category) for name, category in _CATEGORIES.items()
        )

    async def look(self, text: str) -> tuple[Spot, ...]:
        """What the recognizers find."""
        return await asyncio.to_thread(self._find, text)

    async def close(self) -> None:
        """Nothing to release."""

    def _find(self, text: str) -> tuple[Spot, ...]:
        spots = [
            Spot("presidio/phone_number", "phone", r.start, r.end) for r in self._phones.analyze(text, ["PHONE_NUMBER"])
        ]
        for recognizer, category in self._numbers:
            entity = recognizer.supported_entities[0]
            rule = f"presidio/{entity.lower()}"
            sure = [found for found in recognizer.analyze(text, [entity]) if found.score >= _CHECKSUM_HOLDS]
            spots += [Spot(rule, category, found.start, found.end) for found in sure]
        return tuple(spots)
