"""Find the matches of pattern rules by a simple, slow method. Tests compare the policy's automaton with it.

The method applies the documentation's definition of a match, with Python's ``re``, to the whole text.
"""

import re

from services.policy.matching.validators import valid


class Plain:
    """A pattern rule in the form that the function ``matches`` takes."""

    def __init__(self, name, regex, guard="none", validator=None, ignore_case=False):
        self.name, self.regex, self.guard = name, regex, guard
        self.validator, self.ignore_case = validator, ignore_case
        self.compiled = re.compile(regex, (re.IGNORECASE if ignore_case else 0) | re.ASCII)


def kind(char):
    if char.isdecimal():
        return "digit"
    if char.isalnum() or char == "_":
        return "letter"
    return "joiner" if char and char in ".%+-" else "other"


BEFORE = {
    "none": (),
    "digit": ("digit",),
    "word": ("digit", "letter"),
    "token": ("digit", "letter", "joiner"),
    "start": ("digit", "letter"),
}
AFTER = {**BEFORE, "token": ("digit", "letter"), "start": ()}


def allowed(rule, text, start, end):
    if start and kind(text[start - 1]) in BEFORE[rule.guard]:
        return False
    if end < len(text) and kind(text[end]) in AFTER[rule.guard]:
        return False
    if rule.compiled.fullmatch(text, start, end) is None:
        return False
    return rule.validator is None or valid(rule.validator, text[start:end])


def matches(rule, text, *, shortest=False, longest=40):
    """Return a rule's matches, from left to right and without overlaps, as (name, start, end).

    Of the matches that begin at the same character, take the longest, or the shortest if ``shortest`` is set. Ignore
    matches of more than ``longest`` characters.
    """
    found, start = [], 0
    while start < len(text):
        ends = range(start + 1, min(len(text), start + longest) + 1)
        fitting = [end for end in ends if allowed(rule, text, start, end)]
        if fitting:
            end = fitting[0] if shortest else fitting[-1]
            found.append((rule.name, start, end))
            start = end
        else:
            start += 1
    return found


def cuts(text, size):
    return [text[index : index + size] for index in range(0, len(text), size)]
