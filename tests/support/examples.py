"""The number of examples that a property test draws."""

import os

MOST_AT_FIRST = 200
"""The most examples of a test while ``RAILBUS_TEST_EXAMPLES`` is less than 1."""


def examples(count: int) -> int:
    """Return ``count`` times the environment variable ``RAILBUS_TEST_EXAMPLES``, which is 1 by default.

    Values below 1 are for quick runs. With such a value, the result is at most ``MOST_AT_FIRST``.
    """
    share = float(os.environ.get("RAILBUS_TEST_EXAMPLES", "1"))
    drawn = max(1, round(count * share))
    return min(drawn, MOST_AT_FIRST) if share < 1 else drawn
