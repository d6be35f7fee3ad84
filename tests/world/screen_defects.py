"""Defects of the fold, in a session of the edge: what a client sees."""

from msgspec import structs

from schemas.requests import Delivery
from schemas.stream import Closed, Cutover, Recall, Started, StreamEvent
from services.edge.delivery.session import DeliverySession
from services.stream import Governance, Screen
from services.stream.order import FirstRuns


class ShowsAgain(Screen):
    """Shows what follows a recall that withdrew the answer."""

    def feed(self, event: StreamEvent, log_ms: int = 0):
        if self.stopped is not None and not isinstance(event, Recall | Closed):
            self.stopped, self.over, self.withdrawn = None, False, None
        return super().feed(event, log_ms)


class BelievesCutovers(Screen):
    """Believes every cutover, whether or not its reason still holds."""

    def _cutover_holds(self, event: Cutover) -> bool:
        return event.attempt == self._voice_state.last_attempt + 1


class BelievesCloseds(Screen):
    """Believes every ``Closed``."""

    def _close_holds(self, event: Closed) -> bool:
        return True


class IgnoresGate(Screen):
    """Shows text before the verdict."""

    @property
    def gate_open(self) -> bool:
        return self.verdict is None or self.verdict.decision == "allow"


class ShowsUnmasked(Screen):
    """Shows the answer to a prompt that was to be masked."""

    @property
    def gate_open(self) -> bool:
        return super().gate_open or (self.verdict is not None and self.verdict.decision == "mask")


class ShowsEverything(Screen):
    """Shows all text at once, however little of it is cleared."""

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
    """Lets the last run of an attempt speak, not the first."""

    def __init__(self, request_id: str, governance: Governance) -> None:
        super().__init__(request_id, governance)
        self._voice_state.runs = _LastRuns()


class BelievesWorkers(Screen):
    """Believes whatever a worker says of governance, and shows it so."""

    def __init__(self, request_id: str, governance: Governance) -> None:
        super().__init__(request_id, Governance(input_gate="off", output_check="off"))


for _screen in (BelievesCutovers, BelievesCloseds):
    _screen._RULES = {**Screen._RULES}


def session_with(screen: type[Screen]) -> type[DeliverySession]:
    """Return a session that folds with this screen."""

    class Mutant(DeliverySession):
        __slots__ = ()

        def __init__(self, request_id: str, partition: int, governance: Governance) -> None:
            super().__init__(request_id, partition, governance)
            self._screen = screen(request_id, governance)

    return Mutant
