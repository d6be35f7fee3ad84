"""``python -m tests.chaos --rounds 20``: inject faults into safety, rails and router, and print a table of results.

Each round plays every fault once. The exit status is 1 if anything went wrong.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

from tests.chaos import router
from tests.chaos.campaign import SERVICES, faults_of, lab_of, play
from tests.chaos.results import table


async def main():
    options = _arguments()
    router.DECIDE_S = options.decide_s
    full = options.rounds > 1 and not options.short
    totals, began = {}, time.monotonic()
    for number in range(options.first, options.first + options.rounds):
        for service in SERVICES if options.service == "all" else (options.service,):
            faults = faults_of(service, full=full)
            if options.fault != "all":
                faults = [fault for fault in faults_of(service, full=True) if fault == options.fault]
            if options.fault == "none":
                faults = ["none"]
            if not faults:
                continue
            print(f"\nround {number}, {service}, after {time.monotonic() - began:.0f} s", flush=True)
            with tempfile.TemporaryDirectory() as folder:
                async with lab_of(options.broker, service, Path(folder), full=full) as lab:
                    for fault in faults:
                        found = await play(lab, service, fault, number)
                        if (key := (service, fault)) in totals:
                            totals[key].add(found)
                        else:
                            totals[key] = found
    print(f"\n{options.broker} broker, {options.rounds} round(s), {time.monotonic() - began:.0f} s")
    print(table(totals.values()))
    wrong = [f"{found.service}, {found.fault}: {line}" for found in totals.values() for line in found.wrong]
    print(*wrong[: options.show], f"{len(wrong)} wrong", sep="\n")
    return int(bool(wrong) or not totals)


def _arguments():
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument(
        "--rounds",
        type=int,
        default=1,
        help="number of rounds, each with every chosen service and fault (default: %(default)s)",
    )
    parser.add_argument(
        "--first",
        type=int,
        default=0,
        help="number of the first round; it seeds the random choices (default: %(default)s)",
    )
    parser.add_argument("--broker", choices=["embedded", "kafka"], default="embedded")
    parser.add_argument("--service", choices=[*SERVICES, "all"], default="all")
    names = ", ".join(["none", *faults_of("router", full=True)])
    parser.add_argument("--fault", default="all", help=f"all, or one of: {names}")
    parser.add_argument(
        "--short",
        action="store_true",
        help="with several rounds: still use the short session timeout and the short list of faults",
    )
    parser.add_argument(
        "--decide-s",
        type=float,
        default=0.5,
        help="seconds in which a router must decide after a pause (default: %(default)s)",
    )
    parser.add_argument("--show", type=int, default=40, help="maximum number of errors to print (default: %(default)s)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
