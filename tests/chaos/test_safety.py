"""Members come, go, hang and die, and so does the broker: no poison stands, nothing harmless is taken back."""

import pytest

from tests.chaos.campaign import faults_of, play
from tests.chaos.harness import ROUNDS

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

FAULTS = faults_of("safety", full=ROUNDS > 1)
ON_KAFKA = FAULTS if ROUNDS > 1 else ["join"]
CASES = [
    *(pytest.param(("embedded", "safety"), fault, id=f"embedded-{fault}") for fault in FAULTS),
    *(pytest.param(("kafka", "safety"), fault, id=f"kafka-{fault}", marks=pytest.mark.kafka) for fault in ON_KAFKA),
]


@pytest.mark.parametrize(("lab", "fault"), CASES, indirect=["lab"])
async def test_every_answer_is_checked_to_its_end(lab, fault):
    for number in range(ROUNDS):
        found = await play(lab, "safety", fault, number)
        assert found.wrong == []
