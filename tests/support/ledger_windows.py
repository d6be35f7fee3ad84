"""Windows of the ledger for tests, summed by the ledger's own code from made-up accounts and receipts."""

import random

from schemas.side_events import StageTimes
from services.books import BooksConfig, PartitionBooks
from tests.unit.books.events import T0_S, account, detached

CONFIG = BooksConfig(
    keep_s=10**6, show_s=10**7, slo_first_ms=200, slo_total_ms=2_000, plain_token_ms={"": 8.0},
    usd_per_engine_s=0.0001,
)  # fmt: skip


def windows_of(events, now_s, part=0, config=CONFIG):
    """Return the windows that a ledger would publish at ``now_s`` for these accounts and receipts."""
    books = PartitionBooks(part, config)
    for event in events:
        books.take(event, int(now_s * 1_000))
    return list(books.all_windows())


def request_at(number, ago_s, now_s, *, waited_ms=125.0, exposed_tokens=4, **fields):
    """Return the account and the receipt of a request that was closed ``ago_s`` seconds before ``now_s``."""
    closed_s = now_s - ago_s - T0_S
    return account(number, closed_s, **fields), detached(
        number,
        closed_s,
        waited_ms=waited_ms,
        exposed_tokens=exposed_tokens,
        first_text_ms=fields.get("first_text_ms", 61.5),
    )


def busy_hour(now_s, seed=1, per_minute=6):
    """Return the windows of an hour with two tenants, recalls, failures, attempts in the cloud, and a pause midway."""
    dice = random.Random(seed)
    events = []
    number = 0
    for ago_s in range(3_500, 5, -60 // per_minute):
        if 1_500 < ago_s < 1_900:
            continue
        number += 1
        cloud = dice.random() < 0.12
        batch = dice.random() < 0.2
        outcome = dice.choices(["completed", "recalled", "failed", "denied"], [88, 6, 3, 3])[0]
        stages = StageTimes(
            post_ms=dice.uniform(1, 6), lost_attempts_ms=dice.uniform(60, 200) if cloud else 0.0,
            worker_ms=dice.uniform(2, 9), engine_queue_ms=dice.expovariate(1 / 8),
            prefill_ms=dice.lognormvariate(3.9, 0.4),
            rails_ms=dice.choice([0, 0, 0, 20]), hold_back_ms=dice.choice([0, 0, 12]),
            decode_ms=dice.lognormvariate(5.6, 0.5),
            final_hold_back_ms=dice.uniform(0, 25), close_ms=dice.uniform(2, 8),
        )  # fmt: skip
        total_ms = sum(getattr(stages, name) for name in StageTimes.__struct_fields__)
        first_ms = total_ms - stages.decode_ms - stages.final_hold_back_ms - stages.close_ms
        acc, receipt = request_at(
            number, ago_s, now_s, tenant=dice.choice(["acme", "acme", "zeta"]), outcome=outcome, stages=stages,
            lane="batch" if batch else "interactive",
            route="none" if outcome == "denied" else "cloud" if cloud else "self_hosted",
            first_text_ms=first_ms, generation_ms=stages.decode_ms, tokens=60, later_tokens=59, fallbacks=int(cloud),
            cost_usd=0.0004 if cloud else 0.0, recalls=int(outcome == "recalled"),
            governance_total_ms=stages.rails_ms + stages.hold_back_ms + stages.final_hold_back_ms,
            governance_first_text_ms=stages.rails_ms + stages.hold_back_ms, waited_ms=total_ms + dice.uniform(1, 15),
            exposed_tokens=dice.randint(0, 40),
        )  # fmt: skip
        events += [acc, receipt]
    return windows_of(events, now_s)
