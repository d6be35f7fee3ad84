r"""Parse patterns in a subset of Python's ``re`` in which the length of a match is limited.

Supported are literals, ``.``, classes ``[a-z]`` and ``[^...]``, ``\d \w \s`` (ASCII) and their negations, escapes,
groups, alternation, and the quantifiers ``?``, ``{n}`` and ``{n,m}``. Anchors, look-around, ``*``,
``+`` and ``{n,}`` are not supported.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from services.policy.matching import charset
from services.policy.matching.charset import CharSet

MAX_REPEAT: Final = 512

_CLASSES: Final = {
    "d": charset.DIGIT, "w": charset.WORD, "s": charset.SPACE,
    "D": charset.complement(charset.DIGIT), "W": charset.complement(charset.WORD),
    "S": charset.complement(charset.SPACE),
}  # fmt: skip
_CONTROLS: Final = {"n": "\n", "t": "\t", "r": "\r"}
_HEX: Final = {"x": 2, "u": 4}


class BadPattern(ValueError):
    """A pattern is refused, for example because of unsupported syntax. The message says why."""


@dataclass(frozen=True, slots=True)
class Chars:
    chars: CharSet


@dataclass(frozen=True, slots=True)
class Concatenation:
    parts: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class Alternation:
    options: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    part: "Node"
    least: int
    most: int


Node = Chars | Concatenation | Alternation | Repeat
_Trie = dict[CharSet, Any]  # CharSet -> _Trie


def parse(pattern: str, *, ignore_case: bool = False) -> Node:
    """Parse a pattern.

    Raises:
        BadPattern: The pattern has syntax that is not supported.
    """
    return _Parser(pattern, ignore_case=ignore_case).whole()


def words(texts: Iterable[str], *, ignore_case: bool = False) -> Node:
    """Return a pattern that matches exactly these texts."""
    # Texts with a common prefix share the nodes of the prefix.
    root: _Trie = {}
    for text in texts:
        node = root
        for char in text:
            chars = charset.of(char)
            node = node.setdefault(charset.without_case(chars) if ignore_case else chars, {})
        node[()] = {}  # a word ends here
    return _branches(root)


def _branches(trie: "_Trie") -> Node:
    options: list[Node] = []
    for chars, rest in trie.items():
        parts: list[Node] = [Chars(chars)] if chars else []
        while len(rest) == 1 and () not in rest:  # no fork: keep it flat
            ((following, rest),) = rest.items()  # noqa: PLW2901 - walking down
            parts.append(Chars(following))
        if rest and list(rest) != [()]:
            parts.append(_branches(rest))
        options.append(parts[0] if len(parts) == 1 else Concatenation(tuple(parts)))
    return options[0] if len(options) == 1 else Alternation(tuple(options))


def longest(node: Node) -> int:
    match node:
        case Chars():
            return 1
        case Concatenation(parts):
            return sum(map(longest, parts))
        case Alternation(options):
            return max(map(longest, options))
        case Repeat(part, _, most):
            return longest(part) * most


class _Parser:
    def __init__(self, pattern: str, *, ignore_case: bool) -> None:
        self._text = pattern
        self._at = 0
        self._ignore_case = ignore_case

    def whole(self) -> Node:
        node = self._choice()
        if self._at < len(self._text):
            raise self._error("')' closes nothing; write '\\)' for the character")
        return node

    def _choice(self) -> Node:
        options = [self._sequence()]
        while self._take("|"):
            options.append(self._sequence())
        return options[0] if len(options) == 1 else Alternation(tuple(options))

    def _sequence(self) -> Node:
        parts: list[Node] = []
        while self._peek() not in {"", "|", ")"}:
            parts.append(self._quantified())
        return parts[0] if len(parts) == 1 else Concatenation(tuple(parts))

    def _quantified(self) -> Node:
        node = self._atom()
        char = self._peek()
        if char in {"*", "+"}:
            raise self._error(f"'{char}' has no upper bound; write one, such as {{{'0' if char == '*' else '1'},64}}")
        if char == "?":
            self._at += 1
            node = Repeat(node, 0, 1)
        elif char == "{":
            node = self._counted(node)
        else:
            return node
        if self._peek() in {"?", "+", "*", "{"}:
            raise self._error("one quantifier directly after another; the longest match is taken anyway")
        return node

    def _counted(self, node: Node) -> Node:
        close = self._text.find("}", self._at)
        body = self._text[self._at + 1 : close] if close > 0 else ""
        least, comma, most = body.partition(",")
        if comma and least.isdecimal() and not most:
            raise self._error(f"'{{{body}}}' has no upper bound; write one, such as {{{least},{int(least) + 64}}}")
        if not least.isdecimal() or (comma and not most.isdecimal()):
            raise self._error("a quantifier is {n} or {n,m}; write '\\{' for the character")
        low, high = int(least), int(most) if comma else int(least)
        if not low <= high <= MAX_REPEAT or high == 0:
            raise self._error(f"'{{{body}}}' must be ascending, above 0 and at most {MAX_REPEAT}")
        self._at = close + 1
        return Repeat(node, low, high)

    def _atom(self) -> Node:
        char = self._next()
        match char:
            case "(":
                return self._group()
            case "[":
                return self._class()
            case ".":
                return Chars(charset.NOT_NEWLINE)
            case "\\":
                return self._chars(self._escape())
            case "^" | "$":
                raise self._error("anchors are not part of the language; use the rule's guard", -1)
            case "*" | "+" | "?" | "{":
                raise self._error("a quantifier with nothing before it", -1)
        return self._chars(charset.of(char))

    def _group(self) -> Node:
        if self._take("?") and not self._take(":"):
            raise self._error("only (...) and (?:...) groups; use the rule's guard for look-around")
        node = self._choice()
        if not self._take(")"):
            raise self._error("'(' is not closed")
        return node

    def _class(self) -> Node:
        negated = self._take("^")
        ranges: list[charset.Range] = []
        while (char := self._next()) != "]" or not ranges:
            if char == "[" or (char in "-&~|" and self._peek() == char):
                raise self._error(f"{char!r} here may come to mean a set within a set; write '\\{char}'")
            low = self._escape() if char == "\\" else charset.of(char)
            if self._peek() == "-" and self._text[self._at + 1 : self._at + 2] not in {"]", ""}:
                self._at += 1
                low = self._range(low)
            ranges.extend(low)
        chars = charset.union(ranges)
        if self._ignore_case:
            chars = charset.without_case(chars)
        return Chars(charset.complement(chars) if negated else chars)

    def _range(self, low: CharSet) -> CharSet:
        char = self._next()
        if char in "[-":
            raise self._error(f"a range that ends in {char!r} may come to mean a set within a set; write '\\{char}'")
        high = self._escape() if char == "\\" else charset.of(char)
        first, last = low[0][0], high[-1][1]
        if len(low) > 1 or len(high) > 1 or low[0][1] != first or high[0][0] != last or first > last:
            raise self._error("a range goes from one character to a later one; write '\\-' for the character")
        return ((first, last),)

    def _escape(self) -> CharSet:
        char = self._next()
        if char in _CLASSES:
            return _CLASSES[char]
        if char in _CONTROLS:
            return charset.of(_CONTROLS[char])
        if char in _HEX:
            digits = self._text[self._at : self._at + _HEX[char]]
            if len(digits) < _HEX[char] or not all(digit in "0123456789abcdefABCDEF" for digit in digits):
                raise self._error(f"'\\{char}' needs {_HEX[char]} hexadecimal digits")
            self._at += _HEX[char]
            return charset.of(chr(int(digits, 16)))
        if char.isalnum():
            raise self._error(f"'\\{char}' is not part of the language; for word boundaries use the rule's guard", -2)
        return charset.of(char)

    def _chars(self, chars: CharSet) -> Chars:
        return Chars(charset.without_case(chars) if self._ignore_case else chars)

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _take(self, char: str) -> bool:
        if self._peek() != char:
            return False
        self._at += 1
        return True

    def _next(self) -> str:
        char = self._peek()
        if not char:
            raise self._error("ends too early")
        self._at += 1
        return char

    def _error(self, what: str, shift: int = 0) -> BadPattern:
        return BadPattern(f"column {self._at + 1 + shift} of the pattern: {what}")
