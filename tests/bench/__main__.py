"""``make bench``: the two questions that matter most. Each bench runs by itself too: ``python -m tests.bench.NAME``."""

import subprocess
import sys

BENCHES = ("bus_hop", "added_ttft")


def main() -> int:
    """Run them one after another; the first failure is the exit code, in the end."""
    codes = []
    for name in BENCHES:
        print(f"\n== {name}", flush=True)
        codes.append(subprocess.run([sys.executable, "-m", f"tests.bench.{name}"], check=False).returncode)
    return next((code for code in codes if code), 0)


if __name__ == "__main__":
    sys.exit(main())
