"""The pattern matcher: many bounded patterns, streamed text, exact spans. No I/O.

A text is read in one pass, in pieces of any size. The same text always gives the same matches, because a match is
defined on the whole text:

- each pattern (rule) is matched independently of the others; its own matches do not overlap;
- a match's neighbours satisfy the rule's guard, and its text satisfies the rule's validator;
- of all possible matches, the one that starts first is taken, and of those the longest (for an ``immediate`` rule the
  shortest, so that it is known at the earliest character).

``Automaton`` holds the patterns of a policy; its table grows while it runs. ``Scanner`` holds one text's state. A
character costs one table look-up for each open match; nothing backtracks.
"""

from services.policy.matching.automaton import Automaton, Rule
from services.policy.matching.scanner import Match, Scanner, find_all

__all__ = ["Automaton", "Match", "Rule", "Scanner", "find_all"]
