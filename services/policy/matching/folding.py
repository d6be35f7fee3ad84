"""Find words that are disguised by spaces, zero-width characters or look-alike letters.

Text and words are folded to plain lower-case letters and then compared. Spans are in code points of the original text.
"""

import unicodedata
from collections.abc import Iterable
from typing import Final

import ahocorasick

from services.policy.rulings import FoundSpan

MIN_FOLDED: Final = 8
"""Minimum number of letters of a folded word. Shorter words occur in harmless text if its spaces are removed."""

_LOOKALIKES: Final = str.maketrans("0134578@$!|€ıøßæœаеорсухіѕјԁԛԝ", "oieastbasileiosaoaeopcyxisjdqw")
# Greek letters that look Latin; NFKD does not change them.
_GREEK: Final = str.maketrans("αεικνορτυχ", "aeikvoptux")


class _Letters(dict[int, str | None]):
    def __missing__(self, code: int) -> str | None:
        if len(self) >= 65_536:
            self.clear()
        plain = unicodedata.normalize("NFKD", chr(code)).casefold().translate(_LOOKALIKES).translate(_GREEK)
        # None, not "", keeps ``str.translate`` on its fast path
        letters = self[code] = "".join(char for char in plain if char.isalnum()) or None
        return letters


_LETTERS: Final = _Letters()


def fold(text: str) -> str:
    """Remove accents, spaces, punctuation and invisible characters. Replace look-alikes by plain lower-case letters."""
    return text.translate(_LETTERS)


class FoldedWords:
    """Finds words in a text even if they are disguised."""

    def __init__(self, words: Iterable[tuple[str, str, str]]) -> None:
        """Build the automaton.

        Args:
            words: Tuples of rule name, category and word.

        Raises:
            ValueError: A word folds to fewer than 8 letters.
        """
        self._automaton = ahocorasick.Automaton()
        count = 0
        for rule, category, word in words:
            folded = fold(word)
            if len(folded) < MIN_FOLDED:
                raise ValueError(f"{word!r} folds to {len(folded)} letters; fewer than {MIN_FOLDED} find too much")
            entries = self._automaton.get(folded, ())
            self._automaton.add_word(folded, (*entries, (rule, category, len(folded))))
            count += 1
        self._empty = count == 0
        if not self._empty:
            self._automaton.make_automaton()

    def find(self, text: str) -> list[FoundSpan]:
        """Search ``text`` for the words, even where they are disguised. Ignore a match inside a longer word."""
        if self._empty:
            return []
        hits = list(self._automaton.iter(fold(text)))
        if not hits:
            return []
        origin = [index for index, char in enumerate(text) for _ in _LETTERS[ord(char)] or ""]
        found = []
        for last, entries in hits:
            for rule, category, length in entries:
                start, end = origin[last - length + 1], origin[last] + 1
                if not _inside_word(text, start, end):
                    found.append(FoundSpan(rule, category, start, end))
        return found


def _inside_word(text: str, start: int, end: int) -> bool:
    before, after = text[start - 1 : start] if start else "", text[end : end + 1]
    return before.isalnum() or after.isalnum()
