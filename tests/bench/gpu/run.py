"""``python -m tests.bench.gpu.run``: plain against speculative on one GPU, measured against the model of it.

Arms run as processes of their own, A B B A, because an engine does not give its memory back. ``--dry-run`` goes through
the same steps with tiny shapes on the CPU build of vLLM, to see that they work.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from services.physics.speculation import speedup
from tests.bench.gpu import shapes

HERE = Path(__file__).parent
ROOT = HERE.parents[2]


def main():
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--gammas", default="3,5")
    parser.add_argument("--alphas", default="0.8")
    parser.add_argument("--batches", default="1,8,32")
    parser.add_argument("--runners", default="v1")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--out", type=Path, default=Path("gpu.json"))
    parser.add_argument("--limit-s", type=float, default=540, help="begin no arm after so many seconds")
    args = parser.parse_args()
    begun = time.monotonic()
    lines = [] if args.dry_run else told([sys.executable, str(HERE / "ceilings.py")], "CEILINGS", 120)
    show_ceilings(lines)
    with tempfile.TemporaryDirectory() as folder:
        names = ("tiny", "tinier") if args.dry_run else ("27b", "4b")
        target, draft = (shapes.make(Path(folder), name) for name in names)
        arms = plan(args, target, draft)
        results = []
        for number, arm in enumerate([*arms, *reversed(arms)]):
            if time.monotonic() - begun > args.limit_s:
                print(f"after {args.limit_s:.0f} s {2 * len(arms) - number} arms were left out")
                break
            results += told(arm, "ARM", 600)
            args.out.write_text(json.dumps({"ceilings": lines, "arms": results}, indent=1))
    show(results, *names)


def plan(args, target, draft):
    """Commands of the arms: the target alone, the draft alone, the two together."""
    common = ["--batches", args.batches, "--tokens", str(args.tokens)]
    if args.dry_run:
        common += ["--cpu", "--prompt", "64", "--rounds", "1"]
    base = [sys.executable, str(HERE / "arm.py")]
    found = []
    for runner in args.runners.split(","):
        own = [*common, "--runner", runner]
        found.append([*base, "--target", str(target), *own])
        found.append([*base, "--target", str(draft), *own])
        for alpha in args.alphas.split(","):
            for gamma in args.gammas.split(","):
                both = ["--target", str(target), "--draft", str(draft), "--gamma", gamma, "--alpha", alpha]
                found.append([*base, *both, *own])
    return found


def told(command, kind, limit_s):
    """The lines of JSON that a process writes; a process that fails is told of and left out."""
    print("+", " ".join(Path(part).name for part in command[1:]), flush=True)
    try:
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        print(f"  took more than {limit_s} s")
        return []
    if ended.returncode:
        print("  failed:", "\n  ".join(ended.stderr.strip().splitlines()[-6:]))
    return [
        json.loads(line.removeprefix(f"{kind} ")) for line in ended.stdout.splitlines() if line.startswith(f"{kind} ")
    ]


def show_ceilings(lines):
    """What the machine can do."""
    for each in lines:
        print(
            f"{each['gpu']}: {each['bytes_per_s'] / 1e12:.2f} TB/s, {each['flops_bf16'] / 1e12:.0f} TFLOP/s BF16,"
            f" {each['flops_fp8'] / 1e12:.0f} FP8"
        )


def show(results, target, draft):
    """A table: what was bought, what was expected, and whether drafting should be off."""

    def cost(name, runner, batch, gamma=0, alpha=None):
        found = [
            each["ms_per_token"] for each in results
            if (each["target"], each["runner"], each["batch"], each["gamma"]) == (name, runner, batch, gamma)
            and (alpha is None or each["alpha"] == alpha)
        ]  # fmt: skip
        return statistics.median(found) if found else None

    print()
    print(
        f"{'runner':7}{'batch':>6}{'alpha':>7}{'gamma':>6}{'plain':>9}{'spec':>9}{'S':>7}{'model':>7}{'error':>8}  kept"
    )
    keys = sorted({(each["runner"], each["batch"], each["alpha"], each["gamma"]) for each in results if each["gamma"]})
    best = {}
    for runner, batch, alpha, gamma in keys:
        plain, alone = cost(target, runner, batch), cost(draft, runner, batch)
        both = cost(target, runner, batch, gamma, alpha)
        if plain is None or alone is None or both is None:
            continue
        kept = statistics.median(
            each["accepted"] or 0.0 for each in results
            if (each["runner"], each["batch"], each["alpha"], each["gamma"]) == (runner, batch, alpha, gamma)
        )  # fmt: skip
        measured, expected = plain / both, speedup(alpha, gamma, alone / plain)
        best.setdefault((runner, batch, alpha), [(1.0, 0)]).append((measured, gamma))
        print(
            f"{runner:7}{batch:6}{alpha:7.2f}{gamma:6}{plain:8.2f}m{both:8.2f}m{measured:7.2f}{expected:7.2f}"
            f"{expected / measured - 1:8.1%} {kept:.2f}"
        )
    for (runner, batch, alpha), choices in best.items():
        gain, gamma = max(choices)
        print(
            f"{runner} batch {batch} alpha {alpha}: best is {'off' if gamma == 0 else f'gamma {gamma}'} ({gain:.2f}x)"
        )


if __name__ == "__main__":
    main()
