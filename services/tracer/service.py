import asyncio
import gc
from collections.abc import Callable
from hashlib import blake2b
from typing import Final

from schemas.registry import read_kinds
from schemas.topics import ACCOUNTS, RECEIPTS
from services.bus import BusSettings, RecordFilter
from services.processor import Effect, Processor, ProcessorConfig
from services.runtime.errors import UserError
from services.runtime.metrics import TRACER_OPEN, TRACER_UNTRACED
from services.runtime.settings import is_http_url
from services.tracer.core import MEMORY_US, ExportTrace, TracerCore
from services.tracer.exporter import SpanExporter
from services.tracer.settings import Settings

GROUP: Final = "tracer"

READ_TOPICS: Final = (ACCOUNTS, RECEIPTS)

LEAST_BYTES: Final = 262_144
"""Minimum bytes of a fetch. Traces are not urgent, so the broker may collect records for up to two seconds."""

COUNT_S: Final = 1.0
"""Interval at which the metrics about open and untraced requests are updated."""


class TracerService:
    """One tracer process.

    Raises:
        UserError: No collector is configured, its address is invalid, or the extra ``otel`` is not installed.
    """

    def __init__(self, settings: Settings, bus: BusSettings, on_ready: Callable[[], None]) -> None:
        if settings.endpoint is None:
            raise UserError(
                "OTEL_EXPORTER_OTLP_ENDPOINT is not set: name a collector that takes OTLP over HTTP, such as"
                " http://127.0.0.1:4318, or do not start the tracer"
            )
        if not is_http_url(settings.endpoint):
            shown = "(hidden)" if "@" in settings.endpoint else repr(settings.endpoint)  # it may contain a password
            raise UserError(f"OTEL_EXPORTER_OTLP_ENDPOINT={shown}: must be an address such as http://127.0.0.1:4318")
        self._exporter = SpanExporter(settings.endpoint, settings.traces_queue)
        self._core = TracerCore()
        reading = ProcessorConfig(
            group=GROUP,
            topics=READ_TOPICS,
            rewind_ms=MEMORY_US // 1_000,
            record_filter=wanted(settings.traces_ratio),
            instance_id=settings.tracer_instance,
            least_bytes=LEAST_BYTES,
        )
        self._processor = Processor(bus, reading, self._core, None, perform=self._perform, on_ready=on_ready)

    @property
    def ready(self) -> bool:
        return self._processor.ready

    async def run(self) -> None:
        """Export traces until cancelled.

        Raises:
            UserError: The broker refuses the credentials.
        """
        gc.collect()
        gc.freeze()  # imported modules are never freed
        gc.set_threshold(50_000)  # spans have no reference cycles, so few collections are needed
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._exporter.run(), name="tracer-exporter")
            tasks.create_task(self._count(), name="tracer-count")
            tasks.create_task(self._processor.run(), name="tracer-processor")

    def _perform(self, effect: Effect) -> None:
        if isinstance(effect, ExportTrace):
            self._exporter.put(effect.trace)

    async def _count(self) -> None:
        seen = dict.fromkeys(("unsampled", "unclosed", "crowded", "incomplete"), 0)
        while True:
            TRACER_OPEN.set(self._core.open)
            for reason, before in seen.items():
                seen[reason] = getattr(self._core, reason)
                TRACER_UNTRACED.labels(reason).inc(seen[reason] - before)
            await asyncio.sleep(COUNT_S)


def wanted(ratio: float) -> RecordFilter:
    """Return a filter for the events that the tracer reads. It accepts only events of a sample of all requests.

    ``ratio`` is the size of the sample: from 0 for no request to 1 for all requests.
    """
    kinds = read_kinds("tracer", *READ_TOPICS)
    if ratio >= 1:
        return lambda kind, _key: kind in kinds
    below = int(ratio * 2**32)
    return lambda kind, key: kind in kinds and key is not None and _share(key) < below


def _share(key: bytes) -> int:
    # A hash, because the id of a job's request ends with the position of its line.
    return int.from_bytes(blake2b(key, digest_size=4).digest())
