"""Checks behind a pattern: a number that only looks like a card is not one. Pure functions of the matched text."""

import math
from collections import Counter
from collections.abc import Callable
from typing import Final

from services.policy.document import Validator


def luhn(text: str) -> bool:
    """The check digit of payment cards (ISO/IEC 7812-1, annex B); separators are skipped, equal digits refused."""
    digits = [int(char) for char in text if char.isdigit()]
    if len(digits) < 12 or len(set(digits)) == 1:
        return False
    doubled = (digit * 2 - 9 if digit > 4 else digit * 2 for digit in digits[-2::-2])
    return (sum(digits[-1::-2]) + sum(doubled)) % 10 == 0


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


def entropy(text: str) -> bool:
    """At least 3 bits a character (Shannon, over the text's own frequencies): random keys, not words or ``xxxx``."""
    if not text:
        return False
    size = len(text)
    return -sum(count / size * math.log2(count / size) for count in Counter(text).values()) >= 3.0


VALIDATORS: Final[dict[Validator, Callable[[str], bool]]] = {
    "luhn": luhn,
    "iban": iban,
    "ssn": ssn,
    "ipv4": ipv4,
    "entropy": entropy,
}
