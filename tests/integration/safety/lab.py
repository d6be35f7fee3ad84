"""A test lab of safety services on a real log. The test plays the generator, the rails and the router."""

from schemas.ids import uuid7
from schemas.stream import Cleared, Recall
from services.runtime.clock import now_ms
from tests.support.lab import Lab
from tests.unit.safety.world import RunWriter


class SafetyLab(Lab):
    service = "services.safety"
    settings = {"RAILBUS_KAFKA_SESSION_TIMEOUT_MS": "3000"}  # noqa: RUF012

    def said(self, answer=None):
        """Return the ``Cleared`` and ``Recall`` events that were read so far: of one answer, or of all answers."""
        return self.written(Cleared | Recall, None if answer is None else answer.head["request_id"])

    def is_final(self, answer):
        return any(isinstance(event, Cleared) and event.final for event in self.said(answer))

    def screen_of(self, answer):
        return self.screen(answer.head["request_id"])


class FreshAnswer(RunWriter):
    """A ``RunWriter`` with a new request id and the present time."""

    def __init__(self, number, **options):
        super().__init__(**options)
        head = {"request_id": uuid7(now_ms(), number * 7_919 + 1), "at": now_ms() * 1_000}
        self.head |= head
        self.voice |= head
