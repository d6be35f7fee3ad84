"""Run a job undisturbed, then again with ``kill -9`` of services. Check that each line has the same result.

    python -m tests.bench.batch_equal --lines 20000
    python -m tests.bench.batch_equal --engine simulated --governed --only killed --kills 10 --lines 200000 \\
        --limit-s 7200 --strike generator,batch,router,rails,safety,edge,broker

``railbus up`` starts a new tree for each job. Both jobs answer the same file, in which no two prompts are the same.
During the second job, each service in ``--strike`` is killed ``--kills`` times. The kills are spread evenly over the
job. ``--only killed`` leaves the undisturbed job out.

With the engine ``llama``, decoding is greedy. On two cores, two generators run with one thread each. With more threads,
llama.cpp's threads would wait for each other, because the other processes need the cores, too. The engine ``simulated``
makes its words from the request's id, which differs between the jobs. So with this engine, only the outcome and the
number of tokens of each line are compared.

Exit code 1 means that a line does not have exactly one result, or that the results of the two jobs differ.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from itertools import islice, product
from pathlib import Path
from typing import Any, Final, NamedTuple

from schemas.stream import Finished, Started, StreamEvent
from schemas.topics import STREAMS
from services.bus import BusSettings, Received, TailReader, UnreadableRecord
from services.jobs.ids import parse_request_id
from tests.bench.batch_job import Job, answers, show_cost
from tests.support.tree import running_tree

STRUCK: Final = "generator,batch,router,edge,broker"
READ_S: Final = 600.0
STALL_MS: Final = 15_000

WORDS: Final = (
    "library", "harbour", "winter", "letter", "garden", "river", "engine", "window", "market", "teacher", "bridge",
    "paper", "island", "village", "doctor", "basket", "morning", "kitchen", "journey", "mountain", "train", "summer",
    "forest", "castle", "school", "road", "city", "cloud", "ship", "song", "house", "field", "desert", "valley",
    "street", "hospital", "station", "picture", "story", "flower", "horse", "bird", "table", "chair", "lake", "ocean",
    "farm", "church", "museum", "hotel", "office", "factory", "tower", "wall", "door", "roof", "stone", "fire", "glass",
    "clock",
)  # fmt: skip
"""60 words. A prompt has three of them, so there are 216,000 different prompts."""

Results = dict[str, Any]


class Outcome(NamedTuple):
    """The results of one job, and how often its lines were begun and answered.

    Attributes:
        results: Result of each line, by the line's name.
        once: Whether each line has exactly one result.
        begun: Number of ``Started`` events on the log. If it exceeds the number of lines, lines were begun again.
        answered: Number of ``Finished`` events on the log.
        took_s: Seconds from the start of the command ``railbus batch run`` to its end.
    """

    results: Results
    once: bool
    begun: int
    answered: int
    took_s: float


def write_prompts(path: Path, count: int) -> None:
    """Write ``count`` different prompts of about 12 tokens.

    Most prompts differ from the one before only in the last word, so a prefix cache helps.
    """
    side = next(side for side in range(2, len(WORDS) + 1) if side**3 >= count)
    with path.open("w") as file:
        for first, second, third in islice(product(WORDS[:side], repeat=3), count):
            file.write(f"Which is the oldest: {first}, {second} or {third}?\n")


def run_job(args: argparse.Namespace, kills: int) -> Outcome:
    """Run the job in a new tree, and print and return its outcome. ``kills`` is how often each service is killed."""
    args.kills = kills
    settings = {
        "RAILBUS_BATCH_STALL_MS": str(STALL_MS), "RAILBUS_LLAMA_THREADS": "1",
        **dict(pair.split("=", 1) for pair in args.set),
    }  # fmt: skip
    up = ("--engine", args.engine, "--generators", str(args.generators))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_prompts(folder / "prompts.txt", args.lines)
        with running_tree(folder, *up, governed=args.governed, start_s=120, **settings) as tree:
            job = Job(tree, args)
            rows = [row for file in ("results", "errors") for row in answers(folder / "out" / f"{file}.jsonl")]
            left = {int(name.removeprefix("line-")) - 1 for name, result in rows if result == "batch_cancelled"}
            begun, answered, of_left = asyncio.run(read_log(tree.kafka, left))
    names = Counter(name for name, _ in rows)
    once = names == Counter(f"line-{number + 1}" for number in range(args.lines))
    errors = Counter(result for _, result in rows if isinstance(result, str))
    print(f"\nkilled: {', '.join(f'{what} at {count}' for what, count in job.kills) or 'nothing'}")
    print(
        f"{len(rows)} of {args.lines} lines in {job.took_s:.0f} s, {len(rows) / job.took_s:.1f}/s; each once: {once};"
        f" errors {dict(errors)}; begun again {begun - len(rows)}, answered again {answered - len(rows)}"
    )
    for line, events in list(of_left.items())[:5]:
        print(f"  not done at the limit: line-{line + 1}: {' '.join(events)}")
    show_cost(job, argparse.Namespace(engine=""), {}, max(1, len(rows)))
    sys.stdout.flush()
    return Outcome(dict(rows), once, begun, answered, job.took_s)


async def read_log(kafka: str, left: set[int]) -> tuple[int, int, dict[int, list[str]]]:
    """Count ``Started`` and ``Finished`` events on the log, and collect the events of the lines in ``left``.

    ``left`` has the numbers, from 0, of the lines that were cancelled at the time limit. A request id contains
    the position of its line in the order of submission. This position is taken as the line number, because short
    prompts, like those of this benchmark, are submitted in the order of the file. In rare cases, a hash collision in
    ``services.jobs.prefix_order`` changes this order. Then some line numbers are wrong.

    Returns:
        The two counts, and the names of the events of each line in ``left``.
    """
    seen: Counter[str] = Counter()
    of_left: dict[int, list[str]] = {line: [] for line in left}
    reached: dict[int, int] = {}
    counted = {Started.__name__, Finished.__name__}

    def count(records: Sequence[Received | UnreadableRecord]) -> None:
        for record in records:
            event = record.event if isinstance(record, Received) else None
            if not isinstance(event, StreamEvent):
                continue
            seen[type(event).__name__] += 1
            line = parse_request_id(event.request_id).line
            if line in of_left:
                of_left[line].append(type(event).__name__)

    settings = BusSettings(bootstrap=kafka)
    reader = TailReader(settings, handler=count, record_filter=lambda kind, _: bool(left) or kind in counted)
    reading = asyncio.create_task(reader.run())
    try:
        async with asyncio.timeout(READ_S):
            for partition in range(settings.partitions):
                reached[partition] = await reader.end_offset(STREAMS, partition)
                await reader.follow(STREAMS, partition, "beginning")
            while any((reader.position(STREAMS, number) or 0) < end for number, end in reached.items()):  # noqa: ASYNC110
                await asyncio.sleep(0.1)
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
    return seen[Started.__name__], seen[Finished.__name__], of_left


def compared(engine: str, result: Any) -> Any:
    """Return the part of a line's result that must be equal in both jobs.

    For an answer of the engine ``simulated``, this is the number of tokens. Otherwise, it is the whole ``result``. If
    the line has no result, ``result`` is None.
    """
    return result if engine == "llama" or result is None or isinstance(result, str) else result[1]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.batch_equal", description=__doc__)
    parser.add_argument("--engine", choices=("llama", "simulated"), default="llama")
    parser.add_argument("--lines", type=int, default=1_000)
    parser.add_argument(
        "--tokens", type=int, default=4, help="maximum number of tokens of an answer (default: %(default)s)"
    )
    parser.add_argument("--window", type=int, default=64, help="maximum number of open requests (default: %(default)s)")
    parser.add_argument("--generators", type=int, default=2)
    parser.add_argument("--governed", action="store_true")
    parser.add_argument("--kills", type=int, default=1, help="kills of each service in --strike (default: %(default)s)")
    parser.add_argument("--strike", default=STRUCK, help="services to kill (default: %(default)s)")
    parser.add_argument(
        "--only",
        choices=("killed", "both"),
        default="both",
        help="run only the job with kills, or both jobs (default: %(default)s)",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="environment variable of both runs of `railbus up`; repeatable",
    )
    parser.add_argument(
        "--limit-s", type=float, default=3_000.0, help="seconds after which a job is cancelled (default: 3000)"
    )
    args = parser.parse_args()
    if not 1 <= args.lines <= len(WORDS) ** 3:
        parser.error(f"--lines {args.lines}: at most {len(WORDS) ** 3}, so that all prompts differ")
    began_s, kills = time.monotonic(), args.kills
    plain = run_job(args, 0) if args.only == "both" else None
    killed = run_job(args, kills)
    well = killed.once
    if plain is not None:
        other = [
            name for name, result in plain.results.items()
            if compared(args.engine, killed.results.get(name)) != compared(args.engine, result)
        ]  # fmt: skip
        well = well and plain.once and not other
        print(f"\nequal: {len(plain.results) - len(other)} of {len(plain.results)} lines; others:")
        for name in other[:5]:
            print(f"  {name}: {plain.results[name]} | {killed.results.get(name)}")
        print(f"with kills {killed.took_s / plain.took_s:.2f} of the time without")
    print(f"all of it: {time.monotonic() - began_s:.0f} s")
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
