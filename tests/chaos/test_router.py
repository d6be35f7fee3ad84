"""Members come, go, hang and die, and so does the broker: every request is closed as it should be, none too early."""

import pytest

from tests.chaos.campaign import faults_of, play
from tests.chaos.harness import ROUNDS

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

FAULTS = faults_of("router", full=ROUNDS > 1)
ON_KAFKA = FAULTS if ROUNDS > 1 else ["5 s, fallback, requests"]
CASES = [
    *(pytest.param(("embedded", "router"), fault, id=f"embedded-{fault}") for fault in FAULTS),
    *(pytest.param(("kafka", "router"), fault, id=f"kafka-{fault}", marks=pytest.mark.kafka) for fault in ON_KAFKA),
]


@pytest.mark.parametrize(("lab", "fault"), CASES, indirect=["lab"])
async def test_every_request_ends_as_it_should(lab, fault):
    for number in range(ROUNDS):
        found = await play(lab, "router", fault, number)
        assert found.wrong == []
