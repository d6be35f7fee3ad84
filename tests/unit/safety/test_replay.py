"""Tests of ``PolicyReplay``, which judges recorded answers again: its recalls are right, and its memory is bounded."""

from services.safety.rejudge import policy_replay
from services.safety.rejudge.policy_replay import PolicyReplay
from tests.unit.safety.world import RunWriter, policy

TEXT = ["Ask bob@corp.example.com. ", "Or ask no", "body."]
LENGTH = sum(map(len, TEXT))


class FindsNothing:
    """A check that finds nothing."""

    async def find(self, text):
        return ()

    async def close(self):
        pass


def replay():
    return PolicyReplay(policy(), {1: FindsNothing()}, lambda _: True)


async def test_closed_requests_leave_nothing_behind():
    judge = replay()
    for number in range(5):
        answer = RunWriter(number)
        await judge.take(0, [*answer.whole(TEXT), answer.closed()])
    assert len(judge.requests) == len(judge.runs) == 5
    assert judge._ends == {}


async def test_requests_that_were_never_over_are_bounded(monkeypatch):
    monkeypatch.setattr(policy_replay, "MAX_OPEN", 2)
    monkeypatch.setattr("services.safety.partition.MAX_OPEN", 2)
    judge = replay()
    for number in range(20):
        await judge.take(0, RunWriter(number).whole(TEXT))
        assert len(judge._ends) <= 5
    await judge.take(1, [])
    assert judge._ends == {}


async def test_a_recall_is_counted_from_the_text_that_had_arrived():
    judge, answer = replay(), RunWriter()
    await judge.take(0, [answer.started(), *answer.chunks(["Ask bob", "@corp.example.com", "!" * 40])])
    ((recall, chars),) = next(iter(judge.runs.values())).judged
    assert (recall.start, recall.end) == (4, 24)
    assert chars == 64
