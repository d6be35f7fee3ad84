"""Match many patterns in text that arrives in pieces.

``Automaton`` has the patterns of a policy, and ``Scanner`` the state of one text. The matches do not depend on how the
text is divided:

* Each pattern is matched independently of other patterns. Two matches of the same pattern do not overlap.
* The pattern's guard must allow the characters before and after a match. The pattern's validator must accept the match.
* If possible matches of a pattern overlap, the one that starts first is taken. If several of them start at the same
  character, the longest is taken. A ``Scanner`` may be told to take the shortest for some patterns.
"""

from services.policy.matching.automaton import Automaton, Rule
from services.policy.matching.scanner import Match, Scanner, find_all

__all__ = ["Automaton", "Match", "Rule", "Scanner", "find_all"]
