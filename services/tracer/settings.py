"""The tracer's settings."""

from dataclasses import dataclass, field

from services.runtime.settings import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of the tracer.

    Attributes:
        endpoint: Address of the collector for OTLP over HTTP, such as ``http://127.0.0.1:4318``. It is
            read from ``OTEL_EXPORTER_OTLP_ENDPOINT``. OpenTelemetry's other environment variables, such as
            ``OTEL_EXPORTER_OTLP_HEADERS``, are used as well.
        traces_ratio: Share of requests that are traced. A request with an unsampled ``traceparent`` is never traced.
        traces_queue: Maximum number of spans that wait for the collector. Further spans are dropped and counted.
        tracer_instance: Unique name of this tracer. It avoids a rebalance after a quick restart.
    """

    endpoint: str | None = field(
        default=None,
        metadata={
            "env": "OTEL_EXPORTER_OTLP_ENDPOINT",
            "help": "URL of the collector for OTLP over HTTP, such as http://127.0.0.1:4318",
        },
    )
    traces_ratio: float = setting(1.0, "share of requests that are traced", ge=0, le=1)
    traces_queue: int = setting(20_000, "maximum number of spans that wait for the collector", ge=100, le=1_000_000)
    tracer_instance: str | None = setting(
        None, "unique name of this tracer, so that a quick restart causes no rebalance"
    )
