"""Test that the times in an ``Account`` are those that ``railbus audit show`` computes from the same log."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.requests import Message, Request
from schemas.side_events import Account, Detached
from services.router.config import RouterConfig
from services.router.decide.effects import after_close
from services.router.state.request import EventContext, RequestState
from services.stream.latency import LogEvent, latency, stage_times
from tests.support.examples import examples
from tests.unit.router.world import (
    MS,
    RID,
    T0,
    World,
    chunk,
    cleared,
    failed,
    finished,
    recall,
    request,
    started,
    verdict,
)
from tests.unit.stream.histories import REQUEST_ID, grow


def logged(world: World) -> list[LogEvent]:
    """Return the log's events with simulated append times, in milliseconds.

    The append time of an event is the latest ``at`` of this event and all events before it.
    """
    newest, found = 0, []
    for _, event in world.log:
        newest = max(newest, event.at // 1_000)  # type: ignore[attr-defined]
        found.append(LogEvent(newest, event))
    return found


def test_an_account_has_the_stages_of_its_request() -> None:
    world = World().put(
        request(), started(at_ms=5), chunk(0), verdict(at_ms=60), chunk(1, at_ms=70), finished(1, at_ms=71)
    )
    account = world.account()
    found = latency(RID, logged(world))
    assert found is not None
    assert account.stages == stage_times(found)
    assert sum(ms for _, ms in found.parts) == pytest.approx(71)
    assert (account.tokens, account.later_tokens, account.generation_ms) == (2, 1, 20)
    assert account.longest_pause_ms == 20
    assert (account.voice, account.route, account.policy_version) == (1, "self_hosted", "p1")
    assert account.request_at == T0


def test_an_exposed_rail_is_spent_and_a_hidden_one_is_not() -> None:
    gated = {"input_gate": "hold"}
    late = World(RouterConfig(input_gate="hold")).put(
        request(), started(**gated), chunk(0), verdict(at_ms=80, total_ms=75.0), finished(0, at_ms=81)
    )
    account = late.account()
    assert account.stages is not None
    assert (account.stages.rails_ms, account.governance_first_text_ms, account.hidden_rails_ms) == (30, 30, 45)

    early = World(RouterConfig(input_gate="hold")).put(
        request(), started(**gated), verdict(at_ms=20, total_ms=15.0), chunk(0), finished(0, at_ms=81)
    )
    assert early.account().governance_first_text_ms == 0


def test_an_answer_from_the_cloud_and_what_came_before_it() -> None:
    world = World(RouterConfig(fallback="vertex"))
    world.put(request(), started(at_ms=5), failed(at_ms=60))
    world.put(started(at_ms=70, attempt=2, run="r2", engine="vertex"), chunk(0, at_ms=90, attempt=2, run="r2"))
    world.put(finished(0, at_ms=95, attempt=2, run="r2"))
    account = world.account()
    assert (account.voice, account.route, account.fallbacks, account.retries) == (2, "cloud", 1, 0)
    assert account.stages is not None
    assert account.stages.lost_attempts_ms == 60


def test_a_refused_request_has_no_route() -> None:
    world = World(RouterConfig(input_gate="hold")).put(request(), verdict("deny", refusal="no"))
    account = world.account()
    assert (account.outcome, account.voice, account.route, account.policy_version) == ("denied", None, "none", "p1")


def test_a_recalled_answer_has_the_policy_that_recalled_it() -> None:
    world = World().put(request(), started(output_check="on"), chunk(0), recall(at_ms=70), cleared(0))
    world.until(3_000)  # the account waits for the token counts of the stopped worker
    account = world.account()
    assert (account.outcome, account.recalls, account.policy_version) == ("recalled", 1, "p1")


@settings(max_examples=examples(400))
@given(
    data=st.binary(min_size=150, max_size=400),
    steps=st.lists(st.integers(0, 60), min_size=1, max_size=400),
    ahead_ms=st.integers(-5_000, 5_000),
)
def test_router_and_audit_divide_any_history_alike(data: bytes, steps: list[int], ahead_ms: int) -> None:
    at_ms = T0 // 1_000
    asked = Request(
        request_id=REQUEST_ID, tenant="t", source="test", at=(at_ms + ahead_ms) * MS,
        messages=(Message(role="user", content="hello"),),
    )  # fmt: skip
    log = [LogEvent(at_ms + 3, asked)]
    state = RequestState(REQUEST_ID, "t", at_ms * MS, RouterConfig())
    state.on_request(asked, None, (at_ms + 3) * MS, at_ms + 3)
    for index, event in enumerate(grow(data)):
        at_ms += steps[index % len(steps)]
        log.append(LogEvent(at_ms, event))
        state.on_stream(event, at_ms * MS, at_ms)
    found = latency(REQUEST_ID, log)
    closed = state.screen.closed
    if closed is None or found is None:
        assert closed is None
        assert found is None
        return
    writes = after_close(state, closed, 2**52, EventContext(2**52, "router"))
    (account,) = (write.event for write in writes if isinstance(write.event, Account))
    assert account.stages == stage_times(found)
    assert account.first_text_ms == found.first_text_ms
    assert account.generation_ms == found.decode_ms
    assert (account.tokens, account.later_tokens) == (found.tokens, found.later_tokens)
    assert account.clock_skew_ms == found.clock_skew_ms
    assert not any(isinstance(event, Detached) for _, event in log)


def test_an_attempt_that_won_its_race_is_no_lost_time():
    world = World(RouterConfig(fallback="vertex")).put(request(fallback="race"), started()).until(200)
    world.put(started(at_ms=220, attempt=2, run="r2"), chunk(0, at_ms=230), finished(0, at_ms=240))
    account = world.until(3_000).account()
    assert account.stages is not None
    assert (account.voice, account.stages.lost_attempts_ms) == (1, 0)
    assert (account.stages.worker_ms, account.stages.prefill_ms) == (5, 225)
