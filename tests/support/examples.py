"""The number of examples that a property test draws."""

import os

MOST_AT_FIRST = 200
"""The most examples of a test while ``RAILBUS_TEST_EXAMPLES`` is less than 1."""


def examples(count: int) -> int:
    """Multiply ``count`` by the environment variable ``RAILBUS_TEST_EXAMPLES`` (default 1), and return the result.

    If the variable is below 1, for a quick run, the result is at most ``MOST_AT_FIRST``.
    """
    share = float(os.environ.get("RAILBUS_TEST_EXAMPLES", "1"))
    drawn = max(1, round(count * share))
    return min(drawn, MOST_AT_FIRST) if share < 1 else drawn
