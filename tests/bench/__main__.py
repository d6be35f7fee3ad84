"""``make bench``: run the benchmarks ``bus_hop`` and ``added_ttft``, one after the other.

``bus_hop`` measures one hop over the bus. ``added_ttft`` measures what Railbus adds to the time to first token. Every
benchmark can also be run by itself: ``python -m tests.bench.NAME``.
"""

import subprocess
import sys

BENCHES = ("bus_hop", "added_ttft")


def main() -> int:
    """Run all benchmarks, even if one fails. Return the exit code of the first that failed, or 0."""
    codes = []
    for name in BENCHES:
        print(f"\n== {name}", flush=True)
        codes.append(subprocess.run([sys.executable, "-m", f"tests.bench.{name}"], check=False).returncode)
    return next((code for code in codes if code), 0)


if __name__ == "__main__":
    sys.exit(main())
