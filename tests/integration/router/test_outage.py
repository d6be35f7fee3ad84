"""The broker goes away and comes back: nothing is decided twice, nothing is forgotten."""

from pathlib import Path

from schemas.books import Account
from schemas.requests import Deadlines
from schemas.stream import Closed
from tests.integration.router.harness import opened
from tests.integration.router.people import Person


async def test_what_expired_while_the_broker_was_away_is_closed_when_it_is_back(tmp_path: Path) -> None:
    async with opened(data_dir=tmp_path / "log") as lab:
        await lab.router()
        people = [Person(deadlines=Deadlines(total_ms=1_500)) for _ in range(30)]
        for person in people:
            await lab.post(person.request, person.started())
        await lab.until(lambda: len(lab.log) == 60)
        await lab.broker_away(seconds=2.5)
        await lab.until(lambda: len({account.request_id for account in lab.written(Account)}) == len(people))
        assert {closed.outcome for closed in lab.written(Closed)} == {"expired"}
        assert {closed.request_id for closed in lab.written(Closed)} == {person.id for person in people}
