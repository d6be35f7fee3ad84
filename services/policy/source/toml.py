import re
import tomllib
from typing import TypeVar

import msgspec

from services.policy.errors import BrokenPolicy, PolicyFault

T = TypeVar("T")

_SYNTAX = re.compile(r"^(?P<what>.*) \(at (?:line (?P<line>\d+), column \d+|end of document)\)$", re.DOTALL)
_WHERE = re.compile(r"^(?P<what>.*?)(?: - at `(?:key in )?(?P<where>[^`]*)`)?$", re.DOTALL)
_STEP = re.compile(r"\.?([A-Za-z_][A-Za-z0-9_]*)|\[(\d+)\]")
_UNKNOWN = re.compile(r"unknown field `([^`]+)`")


def read_toml(name: str, content: bytes, cls: type[T]) -> T:
    """Parse the content of a TOML file as an object of ``cls``.

    Raises:
        BrokenPolicy: The file is not UTF-8 or not TOML, or its content does not fit ``cls``. The error names the line.
    """
    try:
        text = content.decode("utf-8")
        return msgspec.convert(tomllib.loads(text), cls)
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise BrokenPolicy([PolicyFault(name, line, "is not UTF-8 text")]) from None
    except tomllib.TOMLDecodeError as error:
        raise BrokenPolicy([_syntax_fault(name, text, str(error))]) from None
    except msgspec.ValidationError as error:
        raise BrokenPolicy([_form_fault(name, text, str(error))]) from None


def line_of(text: str, where: str) -> int:
    """Return the number of the line that sets a value in a TOML text.

    Args:
        text: The TOML text.
        where: The path of the value, such as ``$.pattern[2].regex``.
    """
    lines = text.splitlines()
    at = 0
    table = ""
    for key, index in _STEP.findall(where.removeprefix("$").replace("[...]", "[0]")):
        if key:
            table = f"{table}.{key}" if table else key
            at = _find(lines, at, key, table)
        else:
            at = _nth_table(lines, table, int(index), at)
    return at + 1


def _syntax_fault(name: str, text: str, message: str) -> PolicyFault:
    found = _SYNTAX.match(message)
    if found is None:
        return PolicyFault(name, 0, message)
    line = int(found["line"]) if found["line"] else len(text.splitlines())
    return PolicyFault(name, line, found["what"])


def _form_fault(name: str, text: str, message: str) -> PolicyFault:
    found = _WHERE.match(message)
    if found is None:
        return PolicyFault(name, 0, message)
    where = found["where"] or "$"
    unknown = _UNKNOWN.search(message)
    if unknown:  # msgspec names the table, not the key
        where = f"{where}.{unknown[1]}"
    return PolicyFault(name, line_of(text, where), f"{found['what']} - at {where.removeprefix('$.')}")


def _find(lines: list[str], at: int, key: str, table: str) -> int:
    header = re.compile(rf"\s*\[\[?\s*{re.escape(table)}\s*\]")
    assignment = re.compile(rf"\s*{re.escape(key)}\s*=")
    for number in range(at, len(lines)):
        if header.match(lines[number]) or assignment.match(lines[number]):
            return number
    return at


def _nth_table(lines: list[str], table: str, index: int, at: int) -> int:
    header = re.compile(rf"\s*\[\[\s*{re.escape(table)}\s*\]\]")
    numbers = [number for number, line in enumerate(lines) if header.match(line)]
    return numbers[index] if index < len(numbers) else at
