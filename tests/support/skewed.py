"""``python -m tests.support.skewed SECONDS MODULE``: run a module with a wall clock that is ahead by ``SECONDS``.

With a negative number, the wall clock is behind. The monotonic clock is not changed.
"""

import runpy
import sys
import time


def skew(seconds: float) -> None:
    """Move the wall clock of this process ahead by ``seconds``."""
    by_ns, true_time, true_time_ns = int(seconds * 1e9), time.time, time.time_ns
    time.time = lambda: true_time() + seconds
    time.time_ns = lambda: true_time_ns() + by_ns


if __name__ == "__main__":
    skew(float(sys.argv[1]))
    module = sys.argv[2]
    sys.argv[:] = [module, *sys.argv[3:]]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
