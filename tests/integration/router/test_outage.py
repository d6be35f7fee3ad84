"""Test that requests which expire during a broker outage are closed as expired when the broker is back."""

from pathlib import Path

from schemas.requests import Deadlines
from schemas.side_events import Account
from schemas.stream import Closed
from tests.integration.router.lab import RouterLab
from tests.support.request_events import RequestEvents


async def test_what_expired_while_the_broker_was_away_is_closed_when_it_is_back(tmp_path: Path) -> None:
    async with RouterLab.opened(keep_log=True) as lab:
        await lab.run()
        people = [RequestEvents(deadlines=Deadlines(total_ms=4_000, stall_ms=20_000)) for _ in range(30)]
        for person in people:
            await lab.post(person.request, person.started())
        await lab.until(lambda: len(lab.log) >= 60)
        await lab.restart_broker(away_s=4.5)
        await lab.until(lambda: len({account.request_id for account in lab.written(Account)}) == len(people))
        closed = sorted((event.request_id, event.outcome) for event in lab.written(Closed))
        assert closed == sorted((person.id, "expired") for person in people)
