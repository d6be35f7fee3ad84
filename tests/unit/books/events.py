"""Make accounts and receipts of made-up requests, and define Hypothesis strategies that generate such events."""

from hypothesis import strategies as st

from schemas.ids import uuid7
from schemas.side_events import Account, AttemptAccount, Detached, StageTimes
from schemas.stream import Speculation, Usage

T0_S = 1_700_000_040  # a minute begins here
T0_MS = T0_S * 1_000


def account(number=0, closed_s=1.0, *, tenant="acme", stages=None, **fields):
    """Return the account of a request that was closed ``closed_s`` seconds after T0, and 120 ms after its arrival.

    ``number`` tells requests apart. ``fields`` replaces fields of the account.
    """
    stages = stages or StageTimes(post_ms=4, worker_ms=6, prefill_ms=50, decode_ms=50, close_ms=10)
    closed_at = int((T0_S + closed_s) * 1_000_000)
    request_at = closed_at - 120_000
    attempt = AttemptAccount(
        attempt=1, run="r", model="m", engine="simulated", started_at=request_at + 10_000,
        last_chunk_at=request_at + 110_000, usage=Usage(prompt_tokens=5, completion_tokens=11),
        speculation=Speculation(steps=4, drafted=12, accepted=7),
    )  # fmt: skip
    values = {
        "request_id": uuid7(T0_MS + int(closed_s * 1_000), number), "tenant": tenant, "at": closed_at,
        "source": "router/1",
        "outcome": "completed", "received_at": request_at, "closed_at": closed_at, "attempts": (attempt,),
        "request_at": request_at, "stages": stages, "first_text_ms": 60.0, "generation_ms": 50.0, "tokens": 11,
        "later_tokens": 10, "voice": 1, "route": "self_hosted", "policy_version": "p1",
    }  # fmt: skip
    return Account(**(values | fields))


def detached(number=0, closed_s=1.0, *, waited_ms=125.0, reason="complete", connection="c", **fields):
    """Return a ``Detached`` event for the request of ``account(number, closed_s)``.

    The connection ended ``waited_ms`` milliseconds after the request's arrival. ``fields`` replaces fields of the
    event.
    """
    closed_at = int((T0_S + closed_s) * 1_000_000)
    values = {
        "request_id": uuid7(T0_MS + int(closed_s * 1_000), number), "tenant": "acme",
        "at": closed_at - 120_000 + int(waited_ms * 1_000), "source": "edge/1", "connection": connection,
        "reason": reason, "ops": 3, "ops_hash": "0" * 64, "first_text_ms": 61.5, "exposed_tokens": 4,
    }  # fmt: skip
    return Detached(**(values | fields))


CLOSED_S = (0, 3, 11, 26, 55, 180)
"""When request 0, 1, 2 ... was closed, in seconds after T0."""

NUMBERS = st.integers(0, len(CLOSED_S) - 1)


def _account(number, **fields):
    return account(number, CLOSED_S[number], **fields)


def _detached(number, **fields):
    return detached(number, CLOSED_S[number], **fields)


ACCOUNTS = st.builds(
    _account,
    NUMBERS,
    tenant=st.sampled_from(["acme", "zeta"]),
    outcome=st.sampled_from(["completed", "denied", "failed", "recalled", "cancelled"]),
    route=st.sampled_from(["self_hosted", "cloud"]),
    source=st.sampled_from(["router/1", "router/2"]),
    governance_total_ms=st.integers(0, 50).map(float),
    cost_usd=st.sampled_from([0.0, 0.000125]),
    fallbacks=st.integers(0, 1),
)
RECEIPTS = st.builds(
    _detached,
    NUMBERS,
    waited_ms=st.integers(0, 3_000),
    reason=st.sampled_from(["complete", "gone"]),
    connection=st.sampled_from(["c", "d"]),
    exposed_tokens=st.integers(0, 100),
)
EVENTS = st.lists(ACCOUNTS | RECEIPTS, max_size=25)
