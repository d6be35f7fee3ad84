"""Measure how many tokens cannot be cleared yet because they may be the beginning of a match.

    python -m tests.bench.safety_holdback [--policy default]

The first figure is the number of tokens that the matcher holds back at each offset of ordinary text. The output also
has the length of the longest possible match, for comparison.

The second figure is the number of tokens that optimistic delivery shows from the beginning of a forbidden text until
its recall. The forbidden texts are examples from the policy's patterns. The output has this figure for 1, 4 and 8
tokens per engine step. A token is assumed to have 4 characters.
"""

import argparse
import json
from pathlib import Path
from statistics import mean, quantiles
from typing import Any

from services.policy import Policy, Scanner, load
from services.policy.source.document import PatternFile
from services.policy.source.toml import read_toml
from services.safety.decide.recalls import immediate_rules, rule_on
from tests.bench.safety_throughput import TEXT

ROOT = Path(__file__).resolve().parents[2]
TOKEN_CHARS = 4
TENANT = "local"


def held(policy: Policy) -> dict[str, float]:
    """Return how many tokens the matcher holds back in ordinary text: mean, percentiles and maximum.

    The number is taken after each character of the text. The result also has ``always_the_longest``: the length of the
    longest possible match, in tokens.
    """
    scanner, waits = Scanner(policy.automaton), []
    for char in TEXT * 10:
        scanner.feed(char)
        waits.append((scanner.position - scanner.undecided) / TOKEN_CHARS)
    return {
        "mean": round(mean(waits), 2),
        **spread(waits),
        "always_the_longest": policy.automaton.max_chars / TOKEN_CHARS,
    }


def exposed(policy: Policy, step_tokens: int) -> dict[str, float]:
    """Return how many tokens are shown from the start of a forbidden text until its recall.

    The result has the mean, p50, p99 and maximum. The engine makes ``step_tokens`` tokens in each step. A forbidden
    text can start at any character of a step. So the function measures each text from ``recalled_examples`` with
    every possible start.
    """
    size, seen = step_tokens * TOKEN_CHARS, []
    prompt = immediate_rules(policy, TENANT)
    for example in recalled_examples(policy):
        for lead in range(size):
            text = "x" * lead + " " + example + " and so on, as was said. "
            scanner = Scanner(policy.automaton, prompt)
            for index in range(0, len(text), size):
                if scanner.feed(text[index : index + size]):
                    shown = min(index + size, len(text)) - (lead + 1)
                    seen.append(shown / TOKEN_CHARS)
                    break
    return {"mean": round(mean(seen), 1), **spread(seen)}


def recalled_examples(policy: Policy) -> list[str]:
    """Return the examples of all patterns of the policy, except patterns that only flag a text."""
    found = []
    for name, content in policy.files.items():
        if name.startswith("patterns/"):
            for spec in read_toml(name, content, PatternFile).pattern:
                if rule_on(policy, TENANT, spec.category, spec.name, 0).action != "flag":
                    found.extend(spec.examples)
    return found


def spread(values: list[float]) -> dict[str, float]:
    """Return p50, p99 and maximum."""
    cut = quantiles(values, n=100)
    return {"p50": round(cut[49], 1), "p99": round(cut[98], 1), "max": max(values)}


def main() -> None:
    """Print the figures as one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", default="default")
    policy = load(ROOT / "policies" / parser.parse_args().policy)
    result: dict[str, Any] = {"tokens_held_back": held(policy)}
    result |= {f"tokens_seen_of_a_sample_steps_of_{step}": exposed(policy, step) for step in (1, 4, 8)}
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
