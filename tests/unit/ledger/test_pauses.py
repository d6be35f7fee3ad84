"""Test that the ledger notices when its process was paused for too long, and that waiting is no pause."""

from types import SimpleNamespace

import pytest

from services.ledger import pauses
from services.ledger.pauses import PauseWatch
from services.runtime.errors import UnavailableError

LATE_US = 10_000


class Stop(Exception):
    pass


@pytest.fixture
def clock(monkeypatch):
    """Let ``asyncio.sleep`` advance a clock, a little later than asked. Return the clock, in microseconds."""
    now = SimpleNamespace(us=0, ticks=0, ends_after=20, paused_us=0)

    async def sleep(seconds):
        now.us += round(seconds * 1_000_000) + LATE_US + now.paused_us
        now.ticks += 1
        if now.ticks > now.ends_after:
            raise Stop

    monkeypatch.setattr(pauses, "steady_us", lambda: now.us)
    monkeypatch.setattr(pauses, "asyncio", SimpleNamespace(sleep=sleep))
    return now


@pytest.mark.parametrize("session_ms", [1_000, 2_000, 300_000])
async def test_a_ledger_that_waits_was_not_paused(clock, session_ms):
    with pytest.raises(Stop):
        await PauseWatch(session_ms * 1_000).run()
    assert clock.ticks > clock.ends_after


async def test_a_ledger_that_stood_still_ends_itself(clock):
    clock.paused_us = 11_000_000
    with pytest.raises(UnavailableError, match="paused for longer than the session timeout"):
        await PauseWatch(10_000_000).run()


def test_a_pause_is_noticed_before_the_next_tick(clock):
    watch = PauseWatch(10_000_000)
    clock.us = 10_000_000
    watch.check()
    clock.us += 1
    with pytest.raises(UnavailableError):
        watch.check()
    watch.restored()
    watch.check()
