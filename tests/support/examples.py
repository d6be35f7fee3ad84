"""How many examples a property test draws."""

import os

MOST_AT_FIRST = 200
"""Most examples of one test in a first look, where thousands are asked for."""


def examples(count: int) -> int:
    """Return the count times ``RAILBUS_TEST_EXAMPLES``: 0.1 for a first look, 10 for a night."""
    share = float(os.environ.get("RAILBUS_TEST_EXAMPLES", "1"))
    drawn = max(1, round(count * share))
    return min(drawn, MOST_AT_FIRST) if share < 1 else drawn
