"""The number of examples that a property test draws."""

import os

MOST_AT_FIRST = 200
"""The most examples of a test while ``RAILBUS_TEST_EXAMPLES`` is less than 1."""


def examples(count: int) -> int:
    """Return ``count``, multiplied by the environment variable ``RAILBUS_TEST_EXAMPLES`` (default 1).

    The result is at least 1. If the variable is below 1, as in a quick run, the result is at most ``MOST_AT_FIRST``.
    """
    share = float(os.environ.get("RAILBUS_TEST_EXAMPLES", "1"))
    drawn = max(1, round(count * share))
    return min(drawn, MOST_AT_FIRST) if share < 1 else drawn
