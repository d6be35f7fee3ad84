"""Generate the reference page of Prometheus metrics."""

from collections.abc import Iterator

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.metrics import MetricWrapperBase

from infra.docs.discover import modules, sentence
from infra.docs.tables import code, codes, table

KINDS = {Counter: "counter", Gauge: "gauge", Histogram: "histogram"}
PARTS = {
    "bus": "Reading and writing the log, in every service",
    "processor": "Services that keep state from the log: router, safety, rails",
    "edge": "Edge",
    "router": "Router",
    "rails": "Rails",
    "safety": "Safety",
    "policy": "Policy, in rails and safety",
    "generator": "Generator and Vertex worker",
    "batch": "Batch",
    "ledger": "Ledger",
    "audit": "Archiver",
    "tracer": "Tracer",
    "runtime": "Every process",
}


def metrics() -> list[MetricWrapperBase]:
    found = {
        value._name: value  # noqa: SLF001 - the library has no other way to ask a metric its name
        for module in modules("prometheus_client")
        for value in vars(module).values()
        if isinstance(value, MetricWrapperBase)
    }
    return [found[name] for name in sorted(found)]


def scraped(metric: MetricWrapperBase) -> str:
    """Return the metric's name in a scrape. Names of counters end in ``_total``."""
    return f"{metric._name}_total" if isinstance(metric, Counter) else metric._name  # noqa: SLF001


def body() -> str:
    text = ""
    left = metrics()
    for part, title in PARTS.items():
        own = [metric for metric in left if metric._name.startswith(f"railbus_{part}_")]  # noqa: SLF001
        left = [metric for metric in left if metric not in own]
        text += f"\n## {title}\n" + table(("metric", "type", "labels", "meaning"), _rows(own)) if own else ""
    if left:
        text += "\n## Others\n" + table(("metric", "type", "labels", "meaning"), _rows(left))
    return text


def _rows(own: list[MetricWrapperBase]) -> Iterator[tuple[str, str, str, str]]:
    for metric in own:
        labels = codes(metric._labelnames) or "none"  # noqa: SLF001
        yield code(scraped(metric)), KINDS[type(metric)], labels, sentence(metric._documentation)  # noqa: SLF001
