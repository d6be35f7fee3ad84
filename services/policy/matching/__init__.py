"""Match many patterns in text that arrives in pieces.

``Automaton`` has the patterns of a policy, and ``Scanner`` the state of one text. The matches do not depend on how the
text is divided:

* Each pattern is matched independently of the others. Its own matches do not overlap.
* The guard of a pattern must allow the characters before and after a match, and its validator must accept the match.
* Of the possible matches of a pattern, the one that starts first is taken. If several start there, the longest is
  taken; for ``immediate`` rules, the shortest.
"""

from services.policy.matching.automaton import Automaton, Rule
from services.policy.matching.scanner import Match, Scanner, find_all

__all__ = ["Automaton", "Match", "Rule", "Scanner", "find_all"]
