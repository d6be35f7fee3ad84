"""Deliberate defects of the cores of router, safety and rails."""

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
    """Defect: rails writes no verdict for pending requests of a lost partition, even if it regains the partition."""

    def lost(self, number: int) -> None:
        for request_id in [each for each, place in self._pending.items() if place.partition == number]:
            del self._pending[request_id]


class TrustingRails(RailsCore):
    """Defect: when rails regains a lost partition, it skips requests whose verdict was sent but not acknowledged."""

    def lost(self, number: int) -> None:
        evaluated = self._evaluated[number]
        for request_id in [each for each, place in self._pending.items() if place.partition == number]:
            del evaluated[request_id]
        super().lost(number)
        self._evaluated[number] = evaluated


class HoardingRails(RailsCore):
    """Defect: rails does not forget the requests of a lost partition. If it regains the partition, it skips them."""

    def lost(self, number: int) -> None:
        """Do nothing, although the partition's requests must be forgotten."""


class LosesHeld(SafetyCore):
    """Defect: when safety has read a partition to its end, it drops the effects that it has held back until then."""

    def caught_up(self, number: int, known_us: int, now_us: int) -> list[Effect]:
        if not self._partitions[number].queued:
            self._partitions[number]._held.clear()
        return super().caught_up(number, known_us, now_us)


class LeakyRouter(RouterCore):
    """Defect: the prompts and attempts of a lost partition still count against the router's limits."""

    def lost(self, number: int) -> None:
        del self._partitions[number]
        self._share()


class EndlessRouter(RouterCore):
    """Defect: the router forgets which attempts were retries, so it may retry for ever."""

    def read(self, record: Received | UnreadableRecord, at_us: int, now_us: int) -> list[Write]:
        for partition in self._partitions.values():
            for state in partition.requests.values():
                state.retries.clear()
        return super().read(record, at_us, now_us)


class ImpatientRouter(RouterCore):
    """Defect: a pause of 150 ms in an answer counts as a stall, although the deadline is longer."""

    def __init__(self, config: RouterConfig, source: str, partitions: int) -> None:
        super().__init__(replace(config, stall_bounds_ms=(1, 150)), source, partitions)


class CountsFromAt(RouterCore):
    """Defect: deadlines count from ``Request.at`` (the writer's clock) if ``at`` is before the append time."""

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
    """Defect: safety forgets a request after 1.4 s, long before the router closes it."""

    def gained(self, number: int) -> None:
        self._partitions[number] = _ForgetfulPartition(self._total_max_us, catching_up=True)


class HastyRouter(RouterCore):
    """Defect: the router treats a client as gone if the client does not reconnect within 200 ms, which is too short."""

    def __init__(self, config: RouterConfig, source: str, partitions: int) -> None:
        super().__init__(replace(config, client_grace_ms=200), source, partitions)


class OneConnectionRouter(RouterCore):
    """Defect: the router treats a client as gone when one of its connections ends, although others are open."""

    def read(self, item: Received | UnreadableRecord, at_us: int, now_us: int) -> list[Write]:
        if isinstance(item, Received) and isinstance(item.event, Attached | Detached):
            item = item._replace(event=structs.replace(item.event, connection="c"))
        return super().read(item, at_us, now_us)


class CarelessRouter(RouterCore):
    """Defect: the router sends a request to the cloud, although the policy forbids it."""

    def read(self, item: Received | UnreadableRecord, at_us: int, now_us: int) -> list[Write]:
        if isinstance(item, Received) and isinstance(item.event, Verdict):
            item = item._replace(event=structs.replace(item.event, egress="allowed"))
        return super().read(item, at_us, now_us)


class BelievingRouter(RouterCore):
    """Defect: the router lets the ``Started`` of a worker switch off the gate and the output check."""

    def __init__(self, config: RouterConfig, source: str, partitions: int) -> None:
        super().__init__(replace(config, input_gate="off", output_check="off"), source, partitions)
