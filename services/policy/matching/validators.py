"""Further checks of matched text, such as a card's check digit. Pure.

A match grows character by character and is checked at every length, so validators of long texts are incremental.
"""

import math
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Final, Protocol

from services.policy.source.document import ValidatorName


class Luhn:
    """The check digit of payment cards (ISO/IEC 7812-1, annex B). Skips separators; refuses one digit repeated."""

    __slots__ = ("_count", "_doubled", "_first", "_plain", "_varied")

    def __init__(self) -> None:
        self._count = 0
        self._plain = 0  # the sum when the last digit counts once
        self._doubled = 0  # and when it counts twice
        self._first = ""
        self._varied = False

    def feed(self, text: str) -> bool:
        """Take more text. Return whether all of it so far is valid."""
        for char in text:
            if char.isdigit():
                digit = int(char)
                twice = digit * 2 - 9 if digit > 4 else digit * 2
                self._plain, self._doubled = self._doubled + digit, self._plain + twice
                self._first = self._first or char
                self._varied = self._varied or char != self._first
                self._count += 1
        return self._count >= 12 and self._varied and self._plain % 10 == 0


def iban(text: str) -> bool:
    """Return whether the IBAN is valid (ISO 13616): with the first four characters moved to the end, 1 mod 97."""
    code = "".join(char for char in text if char.isalnum()).upper()
    if not 15 <= len(code) <= 34:
        return False
    return int("".join(str(int(char, 36)) for char in code[4:] + code[:4])) % 97 == 1


def ssn(text: str) -> bool:
    """Return whether a US social security number may exist: no 000, 666 or 9xx area, no 00 group, no 0000 serial."""
    digits = "".join(char for char in text if char.isdigit())
    if len(digits) != 9:
        return False
    area, group, serial = digits[:3], digits[3:5], digits[5:]
    return area not in {"000", "666"} and area < "900" and group != "00" and serial != "0000"


def ipv4(text: str) -> bool:
    """Return whether this is a public IPv4 address without leading zeros."""
    parts = text.split(".")
    if len(parts) != 4 or any(len(part) > 1 and part[0] == "0" for part in parts):
        return False
    a, b, *_ = numbers = [int(part) for part in parts]
    if max(numbers) > 255 or a in {0, 10, 127, 255}:
        return False
    return (a, b) not in {(169, 254), (192, 168)} and not (a == 172 and 16 <= b <= 31)


class Entropy:
    """Requires a Shannon entropy of 3 bits a character: random keys pass, words and ``xxxx`` do not.

    With counts c of n characters it is log2(n) - sum(c log2(c)) / n; the sum is updated with each character.
    """

    __slots__ = ("_counts", "_size", "_sum")

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._size = 0
        self._sum = 0.0

    def feed(self, text: str) -> bool:
        """Take more text. Return whether all of it so far is valid."""
        counts = self._counts
        for char in text:
            count = counts.get(char, 0)
            counts[char] = count + 1
            self._sum += _weight(count + 1) - _weight(count)
        self._size += len(text)
        return self._size > 0 and math.log2(self._size) - self._sum / self._size >= _LEAST_BITS


_LEAST_BITS: Final = 3.0 - 1e-9
"""Bits a character, less rounding."""


@lru_cache(maxsize=4_096)
def _weight(count: int) -> float:
    return count * math.log2(count) if count else 0.0


class WholeTextValidator:
    """A check that begins anew with each character; for short texts."""

    __slots__ = ("_check", "_text")

    def __init__(self, check: Callable[[str], bool]) -> None:
        self._check = check
        self._text = ""

    def feed(self, text: str) -> bool:
        """Take more text. Return whether all of it so far is valid."""
        self._text += text
        return self._check(self._text)


class IncrementalValidator(Protocol):
    """A check of a text that grows."""

    def feed(self, text: str) -> bool:
        """Take more text. Return whether all of it so far is valid."""


VALIDATORS: Final[dict[ValidatorName, Callable[[], IncrementalValidator]]] = {
    "luhn": Luhn,
    "iban": partial(WholeTextValidator, iban),
    "ssn": partial(WholeTextValidator, ssn),
    "ipv4": partial(WholeTextValidator, ipv4),
    "entropy": Entropy,
}
"""How to begin a check, by validator."""


def valid(validator: ValidatorName, text: str) -> bool:
    """Return whether a whole text is valid."""
    return VALIDATORS[validator]().feed(text)
