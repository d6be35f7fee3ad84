"""Members come, go, hang and die, and so does the broker: every request has its verdict, and it is the right one."""

import pytest

from tests.chaos.campaign import faults_of, play
from tests.chaos.harness import ROUNDS

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

FAULTS = faults_of("rails", full=ROUNDS > 1)
ON_KAFKA = FAULTS if ROUNDS > 1 else ["pause"]
CASES = [
    *(pytest.param(("embedded", "rails"), fault, id=f"embedded-{fault}") for fault in FAULTS),
    *(pytest.param(("kafka", "rails"), fault, id=f"kafka-{fault}", marks=pytest.mark.kafka) for fault in ON_KAFKA),
]


@pytest.mark.parametrize(("lab", "fault"), CASES, indirect=["lab"])
async def test_every_request_has_its_verdict(lab, fault):
    for number in range(ROUNDS):
        found = await play(lab, "rails", fault, number)
        assert found.wrong == []
