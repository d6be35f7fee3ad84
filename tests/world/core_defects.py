"""Defects of the cores of router, safety and rails."""

from dataclasses import replace

from msgspec import structs

from schemas.requests import Request
from schemas.side_events import Attached, Detached
from schemas.stream import StreamEvent, Verdict
from services.bus import Received, UnreadableRecord
from services.policy import Policy
from services.processor import Effect, Write
from services.rails.core import RailsCore
from services.router.config import RouterConfig
from services.router.core import RouterCore
from services.safety.core import SafetyCore
from services.safety.decide.recalls import CheckContext
from services.safety.decide.request import RequestCheck
from services.safety.partition import SafetyPartition


class ForgetfulRails(RailsCore):
    """Forgets what is pending of a lost partition, and remembers that it was evaluated."""

    def lost(self, number: int) -> None:
        for request_id in [each for each, place in self._pending.items() if place.partition == number]:
            del self._pending[request_id]


class TrustingRails(RailsCore):
    """Remembers that it evaluated a request of a lost partition, although its verdict perhaps never reaches the log."""

    def lost(self, number: int) -> None:
        evaluated = self._evaluated[number]
        for request_id in [each for each, place in self._pending.items() if place.partition == number]:
            del evaluated[request_id]
        super().lost(number)
        self._evaluated[number] = evaluated


class HoardingRails(RailsCore):
    """Keeps what is pending of a lost partition, and never evaluates it again."""

    def lost(self, number: int) -> None:
        """Keep everything."""


class LosesHeld(SafetyCore):
    """Drops what was held back while a partition caught up."""

    def caught_up(self, number: int, known_us: int, now_us: int) -> list[Effect]:
        if not self._partitions[number].queued:
            self._partitions[number]._held.clear()
        return super().caught_up(number, known_us, now_us)


class LeakyRouter(RouterCore):
    """Keeps the memory for the prompts of a lost partition."""

    def lost(self, number: int) -> None:
        del self._partitions[number]
        self._share()


class EndlessRouter(RouterCore):
    """Forgets which attempts were retries."""

    def read(self, record: Received | UnreadableRecord, at_us: int, now_us: int) -> list[Write]:
        for partition in self._partitions.values():
            for state in partition.requests.values():
                state.retries.clear()
        return super().read(record, at_us, now_us)


class ImpatientRouter(RouterCore):
    """Takes every pause of an answer for a stall after half of its time."""

    def __init__(self, config: RouterConfig, source: str, partitions: int) -> None:
        super().__init__(replace(config, stall_bounds_ms=(1, 150)), source, partitions)


class CountsFromAt(RouterCore):
    """Counts deadlines from the wall clock of a request's writer, or from the append if that is earlier."""

    def read(self, item: Received | UnreadableRecord, at_us: int, now_us: int) -> list[Write]:
        if isinstance(item, Received) and isinstance(item.event, Request):
            waited_ms = max(0, at_us - item.event.at) / 1_000
            item = item._replace(event=structs.replace(item.event, waited_ms=waited_ms))
        return super().read(item, at_us, now_us)


class _ForgetfulPartition(SafetyPartition):
    def check_of(self, event: StreamEvent, policy: Policy, context: CheckContext) -> RequestCheck | None:
        known = event.request_id in self.requests
        request = super().check_of(event, policy, context)
        if request is not None and not known:
            request.expires_us = self.read_us + 1_400_000
        return request


class ForgetfulSafety(SafetyCore):
    """Forgets a request long before the router closes it."""

    def gained(self, number: int) -> None:
        self._partitions[number] = _ForgetfulPartition(self._total_max_us, catching_up=True)


class HastyRouter(RouterCore):
    """Takes a client for gone at once."""

    def __init__(self, config: RouterConfig, source: str, partitions: int) -> None:
        super().__init__(replace(config, client_grace_ms=200), source, partitions)


class OneConnectionRouter(RouterCore):
    """Takes a client for gone when one of its connections ends."""

    def read(self, item: Received | UnreadableRecord, at_us: int, now_us: int) -> list[Write]:
        if isinstance(item, Received) and isinstance(item.event, Attached | Detached):
            item = item._replace(event=structs.replace(item.event, connection="c"))
        return super().read(item, at_us, now_us)


class CarelessRouter(RouterCore):
    """Sends a request to the cloud whatever the policy says of egress."""

    def read(self, item: Received | UnreadableRecord, at_us: int, now_us: int) -> list[Write]:
        if isinstance(item, Received) and isinstance(item.event, Verdict):
            item = item._replace(event=structs.replace(item.event, egress="allowed"))
        return super().read(item, at_us, now_us)


class BelievingRouter(RouterCore):
    """Believes a worker that says that no output check is needed."""

    def __init__(self, config: RouterConfig, source: str, partitions: int) -> None:
        super().__init__(replace(config, input_gate="off", output_check="off"), source, partitions)
