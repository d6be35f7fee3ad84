"""The tests that a match of a pattern must pass, such as the test of check digits."""

import math
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from services.policy.source.document import MAX_MATCH_CHARS, ValidatorName


class _Digits:
    __slots__ = ("count", "doubled", "first", "plain", "varied")

    def __init__(self) -> None:
        self.count = 0
        self.plain = 0  # the sum if the last digit counts once
        self.doubled = 0  # the sum if the last digit counts twice
        self.first = -1
        self.varied = False

    def add(self, digit: int) -> None:
        twice = digit * 2 - 9 if digit > 4 else digit * 2
        self.plain, self.doubled = self.doubled + digit, self.plain + twice
        self.varied |= self.count > 0 and digit != self.first
        self.first = digit if self.count == 0 else self.first
        self.count += 1

    @property
    def valid(self) -> bool:
        return self.count >= MIN_CARD_DIGITS and self.varied and self.plain % 10 == 0


MIN_CARD_DIGITS: Final = 12
MAX_CARD_DIGITS: Final = 19


class Luhn:
    """Accepts text that contains a payment card number with a correct check digit (ISO/IEC 7812-1, annex B).

    The number may be divided into groups of digits, as in ``4111 1111 1111 1111``.
    """

    __slots__ = ("_found", "_in_group", "_open", "least_chars")

    def __init__(self) -> None:
        # A number cannot begin or end inside a group, and its digits must not all be equal.
        self.least_chars = 0
        self._found = False
        self._in_group = False
        self._open: list[_Digits] = []  # one for each group at which a number may start, at most 19

    def feed(self, text: str) -> bool:
        for char in text:
            if self._found:
                break
            if not char.isdecimal():  # a superscript is a digit, but has no value
                self._found, self._in_group = self._valid(), False
                continue
            if not self._in_group:
                self._open.append(_Digits())
                self._in_group = True
            for digits in self._open:
                digits.add(int(char))
            if self._open and self._open[0].count > MAX_CARD_DIGITS:
                del self._open[0]
        return self._found or self._valid()

    def _valid(self) -> bool:
        return self._in_group and any(digits.valid for digits in self._open)


def iban(text: str) -> bool:
    """Return whether the check digits of an IBAN are correct (ISO 13616)."""
    code = "".join(char for char in text if char.isalnum()).upper()
    if not code.isascii():  # a pattern may allow letters that no IBAN has
        return False
    if not 15 <= len(code) <= 34:
        return False
    return int("".join(str(int(char, 36)) for char in code[4:] + code[:4])) % 97 == 1


def ssn(text: str) -> bool:
    """Return whether the digits can be a US social security number."""
    digits = "".join(char for char in text if char.isdigit())
    if len(digits) != 9:
        return False
    area, group, serial = digits[:3], digits[3:5], digits[5:]
    return area not in {"000", "666"} and area < "900" and group != "00" and serial != "0000"


def ipv4(text: str) -> bool:
    """Return whether this is an IPv4 address outside the private, loopback and link-local ranges."""
    parts = text.split(".")
    if len(parts) != 4 or not all(part.isdecimal() for part in parts):  # a pattern may allow more than an address
        return False
    if any(len(part) > 1 and part[0] == "0" for part in parts):
        return False
    a, b, *_ = numbers = [int(part) for part in parts]
    if max(numbers) > 255 or a in {0, 10, 127, 255}:
        return False
    return (a, b) not in {(169, 254), (192, 168)} and not (a == 172 and 16 <= b <= 31)


class Entropy:
    """Accepts text with a Shannon entropy of at least 3 bits per character, such as random keys."""

    __slots__ = ("_counts", "_size", "_sum", "least_chars")

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._size = 0
        self._sum = 0.0
        self.least_chars = 0

    # If the n characters occur with the counts c, the entropy is log2(n) - sum(c log2(c)) / n. The sum is updated with
    # each character.
    def feed(self, text: str) -> bool:
        counts = self._counts
        for char in text:
            count = counts.get(char, 0)
            counts[char] = count + 1
            self._sum += _ADDED[count]
        self._size = size = self._size + len(text)
        missing = self._sum - size * (math.log2(size) - _LEAST_BITS) if size else 0.0
        if missing > 0:  # at best, all further characters are new and leave the sum as it is
            self.least_chars = size + int(missing / _MOST_BITS)
        return size > 0 and missing <= 0


_LEAST_BITS: Final = 3.0 - 1e-9
"""Minimum number of bits per character, less an allowance for rounding."""

_MOST_BITS: Final = math.log2(MAX_MATCH_CHARS) - _LEAST_BITS + math.log2(math.e)
"""Maximum number of bits that one more character adds to n * (H - minimum), for n characters with the entropy H."""


def _weight(count: int) -> float:
    return count * math.log2(count) if count else 0.0


_ADDED: Final = tuple(_weight(count + 1) - _weight(count) for count in range(MAX_MATCH_CHARS))
"""What one more occurrence of a character adds to sum(c log2(c)), by the number of its occurrences so far."""


class WholeTextValidator:
    __slots__ = ("_check", "_text", "least_chars")

    def __init__(self, check: Callable[[str], bool]) -> None:
        self._check = check
        self._text = ""
        self.least_chars = 0

    def feed(self, text: str) -> bool:
        self._text += text
        return self._check(self._text)


class IncrementalValidator(Protocol):
    """A validator of a text that grows.

    Attributes:
        least_chars: Minimum number of characters of a valid text.
    """

    least_chars: int

    def feed(self, text: str) -> bool:
        """Add text, and return whether the whole text so far is valid."""


VALIDATORS: Final[dict[ValidatorName, Callable[[], IncrementalValidator]]] = {
    "luhn": Luhn,
    "iban": partial(WholeTextValidator, iban),
    "ssn": partial(WholeTextValidator, ssn),
    "ipv4": partial(WholeTextValidator, ipv4),
    "entropy": Entropy,
}
"""The function that creates a check, by the validator's name."""


def valid(validator: ValidatorName, text: str) -> bool:
    return VALIDATORS[validator]().feed(text)
