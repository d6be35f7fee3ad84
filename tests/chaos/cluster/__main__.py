"""``python -m tests.chaos.cluster --minutes 10``: inject faults into Kafka nodes and two processes of each service."""

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from tests.chaos.cluster.campaign import play, report
from tests.support.brokers import BrokerUnavailable


async def main():
    options = _arguments()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        found, rows, figures = await play(
            Path(folder), minutes=options.minutes, streams=options.streams, seed=options.seed, every_s=options.every_s,
            tokens=options.tokens, scale=options.scale, with_cloud=not options.no_cloud, rolling=options.rolling,
            nodes=options.nodes, say=lambda text: print(text, flush=True),
        )  # fmt: skip
    print(report(found, rows, figures), flush=True)
    for kind, request_id, what in found.violations[: options.show]:
        print(f"{kind}: {request_id}: {what}"[:1_000], flush=True)
        print(*(f"    {line}" for line in found.histories.get(request_id, ())), sep="\n", flush=True)
    for request_id in sorted(found.said_again)[:3]:
        print(
            f"said again: {request_id}", *(f"    {line}" for line in found.histories[request_id]), sep="\n", flush=True
        )
    return int(bool(found.violations))


def _arguments():
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.cluster", description=__doc__)
    parser.add_argument("--minutes", type=float, default=2.0, help="of faults (%(default)s)")
    parser.add_argument("--streams", type=int, default=12, help="people who ask and read (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of faults and questions (%(default)s)")
    parser.add_argument("--every-s", type=float, default=3.0, help="seconds from fault to fault (%(default)s)")
    parser.add_argument("--tokens", type=int, default=1_000, help="of the longest answer (%(default)s)")
    parser.add_argument("--scale", type=float, default=0.5, help="on the time of an engine's step (%(default)s)")
    parser.add_argument("--no-cloud", action="store_true", help="no fallback beside the generators")
    parser.add_argument("--rolling", type=int, default=0, help="no faults: restart each process in turn, so often")
    parser.add_argument(
        "--nodes", type=int, default=3, help="of Apache Kafka; 0 for the embedded broker, with --rolling (%(default)s)"
    )
    parser.add_argument("--show", type=int, default=40, help="how many violations to name (%(default)s)")
    options = parser.parse_args()
    if not options.nodes and not options.rolling:
        parser.error("--nodes 0: the faults strike nodes of Kafka; give --rolling, or more nodes")
    return options


if __name__ == "__main__":
    try:
        sys.exit(asyncio.run(main()))
    except BrokerUnavailable as missing:
        sys.exit(f"Apache Kafka cannot run here: {missing}")
