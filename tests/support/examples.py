"""How many examples a property test draws."""

import os


def examples(count: int) -> int:
    """Return the count times ``RAILBUS_TEST_EXAMPLES``: 0.1 for a first look, 10 for a night."""
    return max(1, round(count * float(os.environ.get("RAILBUS_TEST_EXAMPLES", "1"))))
