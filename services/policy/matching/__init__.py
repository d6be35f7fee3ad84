"""Match many patterns in text that arrives in pieces.

``Automaton`` has the patterns of a policy, and ``Scanner`` the state of one text. The matches do not depend on how the
text is divided. If matches of a pattern overlap, ``Scanner`` returns only one of them.
"""

from services.policy.matching.automaton import Automaton, Rule
from services.policy.matching.scanner import Match, Scanner, find_all

__all__ = ["Automaton", "Match", "Rule", "Scanner", "find_all"]
