"""Deliberate defects of the fold in an edge, which change what a client sees."""

from msgspec import structs

from schemas.requests import Delivery
from schemas.stream import Closed, Cutover, Recall, Started, StreamEvent
from services.edge.delivery.session import DeliverySession
from services.stream import Governance, Screen
from services.stream.order import FirstRuns


class ShowsAgain(Screen):
    """Defect: later text is shown, although a recall has withdrawn the answer."""

    def feed(self, event: StreamEvent, log_ms: int = 0):
        if self.stopped is not None and not isinstance(event, Recall | Closed):
            self.stopped, self.over, self.withdrawn = None, False, None
        return super().feed(event, log_ms)


class BelievesCutovers(Screen):
    """Defect: every ``Cutover`` counts, although some are void."""

    def _cutover_holds(self, event: Cutover) -> bool:
        return event.attempt == self._voice_state.last_attempt + 1


class BelievesCloseds(Screen):
    """Defect: every ``Closed`` counts, although some are void."""

    def _close_holds(self, event: Closed) -> bool:
        return True


class IgnoresGate(Screen):
    """Defect: text is shown before the verdict."""

    @property
    def gate_open(self) -> bool:
        return self.verdict is None or self.verdict.decision == "allow"


class ShowsUnmasked(Screen):
    """Defect: the answer to the unmasked prompt is shown, although the verdict was to mask the prompt."""

    @property
    def gate_open(self) -> bool:
        return super().gate_open or (self.verdict is not None and self.verdict.decision == "mask")


class ShowsEverything(Screen):
    """Defect: in every delivery mode, up to 10,000 tokens are shown before they are cleared."""

    @property
    def delivery(self) -> Delivery | None:
        delivery = super().delivery
        return None if delivery is None else structs.replace(delivery, mode="optimistic", max_exposure_tokens=10_000)


class _LastRuns(FirstRuns):
    __slots__ = ()

    def register(self, started: Started) -> bool:
        self.by_attempt[started.attempt] = started
        return True


class HearsTheLastRun(Screen):
    """Defect: the last run of an attempt is shown, although only the first run counts."""

    def __init__(self, request_id: str, governance: Governance) -> None:
        super().__init__(request_id, governance)
        self._voice_state.runs = _LastRuns()


class BelievesWorkers(Screen):
    """Defect: the edge believes a worker that says that neither gate nor output check is needed."""

    def __init__(self, request_id: str, governance: Governance) -> None:
        super().__init__(request_id, Governance(input_gate="off", output_check="off"))


for _screen in (BelievesCutovers, BelievesCloseds):
    _screen._RULES = {**Screen._RULES}


def session_with(screen: type[Screen]) -> type[DeliverySession]:
    """Return a subclass of ``DeliverySession`` that computes the visible text with the class ``screen``."""

    class Mutant(DeliverySession):
        __slots__ = ()

        def __init__(self, request_id: str, partition: int, governance: Governance) -> None:
            super().__init__(request_id, partition, governance)
            self._screen = screen(request_id, governance)

    return Mutant
