"""Checks behind a pattern: a number that only looks like a card is not one. Pure: of the matched text alone.

A match may grow character by character, and each length of it is checked: what is long keeps count instead of beginning
anew.
"""

import math
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Final, Protocol

from services.policy.document import Validator


class Luhn:
    """The check digit of payment cards (ISO/IEC 7812-1, annex B); separators are skipped, equal digits refused."""

    __slots__ = ("_count", "_doubled", "_first", "_plain", "_varied")

    def __init__(self) -> None:
        self._count = 0
        self._plain = 0  # the sum when the last digit counts once
        self._doubled = 0  # and when it counts twice
        self._first = ""
        self._varied = False

    def feed(self, text: str) -> bool:
        """Take more of a text; returns whether all of it so far is valid."""
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
    """Remainder 1 modulo 97 after moving the first four characters to the end (ISO 13616)."""
    code = "".join(char for char in text if char.isalnum()).upper()
    if not 15 <= len(code) <= 34:
        return False
    return int("".join(str(int(char, 36)) for char in code[4:] + code[:4])) % 97 == 1


def ssn(text: str) -> bool:
    """US social security numbers that can have been issued: no 000, 666 or 9xx area, no 00 group, no 0000 serial."""
    digits = "".join(char for char in text if char.isdigit())
    if len(digits) != 9:
        return False
    area, group, serial = digits[:3], digits[3:5], digits[5:]
    return area not in {"000", "666"} and area < "900" and group != "00" and serial != "0000"


def ipv4(text: str) -> bool:
    """Four numbers up to 255, none with a leading zero, and neither loopback, link-local, private nor broadcast."""
    parts = text.split(".")
    if len(parts) != 4 or any(len(part) > 1 and part[0] == "0" for part in parts):
        return False
    a, b, *_ = numbers = [int(part) for part in parts]
    if max(numbers) > 255 or a in {0, 10, 127, 255}:
        return False
    return (a, b) not in {(169, 254), (192, 168)} and not (a == 172 and 16 <= b <= 31)


class Entropy:
    """At least 3 bits a character (Shannon, over the text's own frequencies): random keys, not words or ``xxxx``.

    With counts c of n characters that is log2(n) - sum(c log2(c)) / n, kept up to date character by character.
    """

    __slots__ = ("_counts", "_size", "_sum")

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._size = 0
        self._sum = 0.0

    def feed(self, text: str) -> bool:
        """Take more of a text; returns whether all of it so far is valid."""
        counts = self._counts
        for char in text:
            count = counts.get(char, 0)
            counts[char] = count + 1
            self._sum += _weight(count + 1) - _weight(count)
        self._size += len(text)
        return self._size > 0 and math.log2(self._size) - self._sum / self._size >= _LEAST_BITS


_LEAST_BITS: Final = 3.0 - 1e-9
"""Of a character; less what rounding may cost."""


@lru_cache(maxsize=4_096)
def _weight(count: int) -> float:
    return count * math.log2(count) if count else 0.0


class Whole:
    """A check of the text as it stands; for what is short."""

    __slots__ = ("_check", "_text")

    def __init__(self, check: Callable[[str], bool]) -> None:
        self._check = check
        self._text = ""

    def feed(self, text: str) -> bool:
        """Take more of a text; returns whether all of it so far is valid."""
        self._text += text
        return self._check(self._text)


class Running(Protocol):
    """A check of a text that grows."""

    def feed(self, text: str) -> bool:
        """Take more of a text; returns whether all of it so far is valid."""


RUNNING: Final[dict[Validator, Callable[[], Running]]] = {
    "luhn": Luhn,
    "iban": partial(Whole, iban),
    "ssn": partial(Whole, ssn),
    "ipv4": partial(Whole, ipv4),
    "entropy": Entropy,
}
"""For each validator, how a check begins."""


def valid(validator: Validator, text: str) -> bool:
    """Whether a whole text is valid."""
    return RUNNING[validator]().feed(text)
