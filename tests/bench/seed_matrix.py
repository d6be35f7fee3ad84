"""Compare the batch plan of Railbus with a table in the design document. The document is not in this repository.

``python -m tests.bench.seed_matrix`` prints the figures of both, and the reasons for the differences.
"""

from dataclasses import dataclass
from functools import cache
from typing import Final, Literal

from services.physics.batches import BatchWork
from services.physics.catalogue.gpus import gpu
from services.physics.catalogue.models import model
from services.planner.batch.choose import hours_text, money_text
from services.planner.batch.plan import BatchPlan, plan_batch
from services.planner.batch.prices import read_prices
from services.planner.batch.ways import BatchJob, Range, Way

Verdict = Literal["agrees", "slower", "faster", "dearer", "cheaper"]

ROUNDED: Final = 0.02
"""Tolerated relative difference, because the document rounds to two digits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedRow:
    """One row of the table in the design document.

    Attributes:
        row: Name of the row in the document.
        way: Name of the way in the plan of Railbus that the row is compared with.
        hours: Hours in the document: 200,000 requests divided by the document's requests per second.
        money: US dollars in the document.
        time: Whether the hours agree, or the plan of Railbus is slower or faster.
        cost: Whether the money agrees, or the plan of Railbus is dearer or cheaper.
        why: Explanation of the difference; empty if there is none.
    """

    row: str
    way: str
    hours: float
    money: float
    time: Verdict
    cost: Verdict
    why: str


def hours_at(per_second: float) -> float:
    return 200_000 / per_second / 3_600


ROWS: Final = (
    SeedRow(
        row="Current (Gemma 12B)", way="gemma-3-12b, int4, vllm", hours=hours_at(1.3), money=0, time="agrees",
        cost="dearer",
        why="1.3 requests a second need some 30 answers at once and a cached prefix: one at a time it would be 14 "
        "days. The document runs Q4_K_M in llama.cpp. For this, Railbus predicts 3.8 days: its constant for small "
        "batches is from another GPU, and is too low if the document's rate was measured. Energy is not free",
    ),
    SeedRow(
        row="Gemma 9B", way="gemma-2-9b, int4", hours=hours_at(1.8), money=0, time="slower", cost="dearer",
        why="Gemma 2 keeps far more KV cache than Gemma 3 (windows of 4,096, half of the layers global), so fewer "
        "answers fit at once: it is slower than the 12B",
    ),
    SeedRow(
        row="Gemma 2B", way="gemma-2-2b, int8", hours=hours_at(4.0), money=0, time="faster", cost="dearer",
        why="the document counts one request after the other; 93 at once share each reading of the weights",
    ),
    SeedRow(
        row="2x RTX 4080", way="2 x rtx-4080, int4, data 2", hours=hours_at(2.6), money=1_200, time="agrees",
        cost="agrees", why="",
    ),
    SeedRow(
        row="4x RTX 4080", way="4 x rtx-4080, int4, data 4", hours=hours_at(5.2), money=3_600, time="agrees",
        cost="agrees", why="",
    ),
    SeedRow(
        row="vLLM (9B)", way="gemma-2-9b, int4", hours=hours_at(3.6), money=0, time="slower", cost="dearer",
        why="the document counts a gain of 2 to 4 times for batching, but its rate is already that of a batch; and the "
        "12B does fit: in int4, int8 or FP8 it needs 7 to 12 of the 16 GiB",
    ),
    SeedRow(
        row="4x A100 Cloud", way="4 x a100-40 rented, int8, data 4", hours=hours_at(15.6), money=22, time="slower",
        cost="agrees",
        why="one A100-40 is 2.1 times our RTX 4080, not 3; and a quarter of an hour goes into the set-up",
    ),
    SeedRow(
        row="8x H100 Cloud", way="8 x h100 rented, fp8, data 8", hours=hours_at(62.4), money=25, time="agrees",
        cost="agrees", why="",
    ),
    SeedRow(
        row="OpenAI GPT-4o-mini", way="gpt-4o-mini, tier 4", hours=hours_at(100), money=126, time="slower",
        cost="agrees",
        why="100 requests a second are 20 million tokens a minute: tier 4 allows 10, tier 5 150, a new account 0.2. "
        "The batch lane, which the document recommends, promises 24 hours and costs 63 dollars",
    ),
    SeedRow(
        row="Groq (paid)", way="groq", hours=hours_at(100), money=200, time="agrees", cost="cheaper",
        why="660 million tokens at 0.27 are 178 dollars; 33 minutes need the whole rate limit all the time",
    ),
    SeedRow(
        row="Together.ai", way="together", hours=hours_at(50), money=120, time="agrees", cost="dearer",
        why="120 leaves out the answers: 660 million tokens at 0.20 are 132 dollars; 67 minutes need the whole "
        "rate limit",
    ),
)  # fmt: skip


@cache
def plan() -> BatchPlan:
    """Return the batch plan of Railbus for the job that the design document describes."""
    job = BatchJob(
        work=BatchWork(requests=200_000, shared=2_400, own=600, output=300), model=model("gemma-3-12b"),
        gpu=gpu("rtx-4080"), smaller=(model("gemma-2-9b"), model("gemma-2-2b")), draft=model("gemma-3-1b"),
    )  # fmt: skip
    return plan_batch(job, read_prices(None))


def way_of(row: SeedRow) -> Way:
    return next(way for way in plan().ways if way.name == row.way)


def judged(theirs: float, ours: Range, *, more: Verdict, less: Verdict) -> Verdict:
    """Compare ``theirs``, a figure of the design document, with ``ours``, the interval that Railbus predicts.

    Return ``more`` if the interval is above the figure, ``less`` if it is below the figure, and "agrees" otherwise.
    Relative differences of up to ``ROUNDED`` do not count.
    """
    if ours.low > theirs * (1 + ROUNDED):
        return more
    return less if ours.high < theirs * (1 - ROUNDED) else "agrees"


def main() -> None:
    for row in ROWS:
        way = way_of(row)
        print(
            f"{row.row:<20} {hours_text(row.hours):>8} {money_text(row.money):>9}   "
            f"ours {hours_text(way.hours.value):>8} "
            f"({hours_text(way.hours.low)} - {hours_text(way.hours.high)}), {money_text(way.money.value)} "
            f"({money_text(way.money.low)} - {money_text(way.money.high)}): time {row.time}, money {row.cost}"
        )
        if row.why:
            print(f"{'':<20} {row.why}")


if __name__ == "__main__":
    main()
