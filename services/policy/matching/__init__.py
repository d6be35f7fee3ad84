"""The pattern matcher: many bounded patterns, streamed text, exact spans.

A prompt or an answer is looked through in one pass, whatever the pieces it arrives in: same text, same matches. What a
match is does not depend on the pieces because it is defined on the whole text:

- each pattern (rule) is on its own; its matches do not overlap;
- a match's neighbours satisfy the rule's guard and its text the rule's validator;
- of the possible matches the one that starts first is taken, and of those the longest (a ``prompt`` rule: the
  shortest, so that it is known at the earliest character).

``Machine`` holds the patterns of a policy as a lazily built automaton, ``Scanner`` one text's state. Work per character
is one table look-up for each place where a match may have begun; nothing backtracks.

Pure.
"""

from services.policy.matching.machine import Machine, Rule
from services.policy.matching.scanner import Match, Scanner, find_all

__all__ = ["Machine", "Match", "Rule", "Scanner", "find_all"]
