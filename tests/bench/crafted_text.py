"""Measure the CPU time per character of the default policy's matcher, on prose and on texts crafted to be slow.

    python -m tests.bench.crafted_text [--policy default] [--chars 20000]

The matcher runs alone. Figures are microseconds of CPU time per character, the smallest of three runs. A crafted text
makes the matcher begin a match as often as possible.
"""

import argparse
import time
from pathlib import Path

from services.policy import Scanner, load
from tests.bench.safety_throughput import TEXT, additions

ROOT = Path(__file__).resolve().parents[2]
FED_CHARS = 4
CRAFTED = ("--sk-", "--sk---", "sk-", "sk-ant-", "eyJ.", "AKIA", "4111-", "a@b.", "+49 30 ", "DE89 ")


def us_a_character(policy, text):
    begun, scanner = time.process_time(), Scanner(policy.machine)
    for index in range(0, len(text), FED_CHARS):
        scanner.feed(text[index : index + FED_CHARS])
    return (time.process_time() - begun) * 1e6 / len(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", default="default")
    parser.add_argument("--chars", type=int, default=20_000)
    given = parser.parse_args()
    policy = load(ROOT / "policies" / given.policy)
    print(f"{additions():.1f} million additions a second\n\n| repeated | µs a character |\n|---|---|")
    for name, piece in [("prose", TEXT), *((f"`{piece}`", piece) for piece in CRAFTED)]:
        text = (piece * (given.chars // len(piece) + 1))[: given.chars]
        print(f"| {name} | {min(us_a_character(policy, text) for _ in range(3)):.1f} |", flush=True)


if __name__ == "__main__":
    main()
