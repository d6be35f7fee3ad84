"""``python -m tests.world --runs 1000``: runs of the simulated tree; exit status 1 on any violation."""

import argparse
import gc
import hashlib
import sys
import time

from tests.world.mutants import survey
from tests.world.plan import FAULT_KINDS, draw
from tests.world.shrink import shrink
from tests.world.timeline import draw_timeline
from tests.world.world import Result, World


def main() -> int:
    options = _arguments()
    kinds = tuple(options.faults.split(",")) if options.faults else FAULT_KINDS
    if unknown := [kind for kind in kinds if kind not in FAULT_KINDS]:
        print(f"unknown faults: {', '.join(unknown)}; there are {', '.join(FAULT_KINDS)}")
        return 2
    gc.freeze()
    gc.disable()  # a run is short; what it leaves is collected between runs
    if options.mutants:
        return int(not survey(options.seed, options.samples, options.seeds, lambda line: print(line, flush=True)))
    results, began_s = [], time.process_time()
    for seed in range(options.seed, options.seed + options.runs):
        results.append(World(draw(seed, kinds)).run())
        if len(results) % 25 == 0:
            gc.collect()
        if results[-1].violation is not None:
            print(f"seed {seed}: {results[-1].violation}", flush=True)
    print(_summary(results, time.process_time() - began_s))
    broken = [result for result in results if result.violation is not None]
    if broken:
        _explain(broken[0], kinds)
    return int(bool(broken))


def _summary(results: list[Result], cpu_s: float) -> str:
    whole = hashlib.blake2b("".join(result.digest for result in results).encode(), digest_size=8).hexdigest()
    requests, faults = sum(each.requests for each in results), sum(each.faults for each in results)
    return (
        f"{len(results)} runs, {requests} requests ({sum(each.healthy for each in results)} judged healthy),"
        f" {faults} faults, {sum(each.rebalances for each in results)} rebalances,"
        f" {sum(each.records for each in results)} records, {sum(each.events for each in results)} events,"
        f" {len(results) / max(cpu_s, 1e-9):.1f} runs/s of CPU,"
        f" {sum(each.violation is not None for each in results)} violations, schedule {whole}"
    )


def _explain(result: Result, kinds: tuple[str, ...]) -> None:
    """Shrink a failing run, and draw it."""
    assert result.violation is not None
    plan = shrink(draw(result.seed, kinds), result.violation.promise)
    again = World(plan, trace=True).run()
    assert again.violation is not None
    assert again.lines is not None
    print(f"\nseed {result.seed}: {again.violation}\n{len(plan.faults)} of {result.faults} faults are needed:")
    print(*plan.faults, sep="\n")
    print(draw_timeline(again.lines, str(again.violation)))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.world", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first seed (%(default)s)")
    parser.add_argument("--runs", type=int, default=1, help="how many seeds (%(default)s)")
    parser.add_argument("--faults", default="", help=f"only these kinds: {','.join(FAULT_KINDS)}")
    parser.add_argument("--mutants", action="store_true", help="look for planted defects instead, and tell the medians")
    parser.add_argument("--samples", type=int, default=3, help="how often to look for each mutant (%(default)s)")
    parser.add_argument("--seeds", type=int, default=2_000, help="how many seeds a mutant may survive (%(default)s)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
