"""Run an OTLP server that records the spans it receives, or an OpenTelemetry Collector that forwards spans to it."""

import gzip
import subprocess
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import yaml

from tests.support.processes import die_with_parent, free_port, go_program, is_free
from tests.support.waiting import wait_until

COLLECTOR = "otelcol-railbus"


@dataclass(frozen=True)
class ReceivedSpan:
    """A span as it was received over OTLP. Ids are hexadecimal strings. A root span has an empty ``parent_id``."""

    trace_id: str
    span_id: str
    parent_id: str
    name: str
    kind: int
    start_ns: int
    end_ns: int
    service: str
    attributes: dict
    events: tuple[str, ...]
    error: str

    @property
    def ms(self):
        return (self.end_ns - self.start_ns) / 1e6


class OtlpReceiver:
    """The address of an OTLP server, and the spans that it has received.

    Attributes:
        raw: The bytes of all requests that were accepted.
        status: The HTTP status that the server answers with. If it is not 200, the server drops the spans.
    """

    def __init__(self):
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.spans: list[ReceivedSpan] = []
        self.raw = b""
        self.status = 200

    def by_request(self):
        """Return the spans of each complete trace, by the id of the request.

        The spans of one trace may arrive in several exports. A trace counts as complete if its spans with the attribute
        ``railbus.part`` together last as long as the span of the request. A difference of 1 ms is allowed.
        """
        traces: dict[str, dict[str, ReceivedSpan]] = {}
        for span in self.spans:
            traces.setdefault(span.trace_id, {})[span.span_id] = span
        found = {}
        for trace in traces.values():
            spans = list(trace.values())
            parts_ms = sum(span.ms for span in spans if "railbus.part" in span.attributes)
            for span in spans:
                if (request_id := span.attributes.get("railbus.request_id")) and parts_ms >= span.ms - 1:
                    found[request_id] = spans
        return found

    def take(self, body):
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        self.raw += body
        message = ExportTraceServiceRequest.FromString(body)
        for group in message.resource_spans:
            resource = {each.key: _value(each.value) for each in group.resource.attributes}
            for scope in group.scope_spans:
                self.spans += [_span(span, resource.get("service.name", "")) for span in scope.spans]


def _span(span, service):
    return ReceivedSpan(
        trace_id=span.trace_id.hex(), span_id=span.span_id.hex(), parent_id=span.parent_span_id.hex(), name=span.name,
        kind=span.kind, start_ns=span.start_time_unix_nano, end_ns=span.end_time_unix_nano, service=service,
        attributes={each.key: _value(each.value) for each in span.attributes},
        events=tuple(event.name for event in span.events), error=span.status.message if span.status.code == 2 else "",
    )  # fmt: skip


def _value(value):
    kind = value.WhichOneof("value")
    return (
        [_value(each) for each in value.array_value.values]
        if kind == "array_value"
        else getattr(value, kind or "", None)
    )


@contextmanager
def otlp_receiver(receiver=None):
    """Run an OTLP server within the ``with`` block. Yield the object that records the received spans.

    This object is ``receiver``, or a new one.
    """
    pytest.importorskip("opentelemetry.proto", reason="pip install -r requirements/otel.txt")
    receiver = receiver or OtlpReceiver()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            if receiver.status == 200:
                receiver.take(body)
            self.send_response(receiver.status)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", receiver.port), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


def collector_program():
    """Return the path of the OpenTelemetry Collector. If there is none, skip the test and say how to build it."""
    found = go_program(COLLECTOR)
    if found is None:
        pytest.skip(f"{COLLECTOR} is neither in PATH nor in GOPATH/bin: `make otelcol` builds it with Go")
    return found


@contextmanager
def running_collector(receiver, folder):
    """Run the OpenTelemetry Collector within the ``with`` block. Yield its URL.

    The collector forwards all spans to ``receiver``. Its configuration and log are in ``folder``.
    """
    port = free_port()
    configuration = {
        "receivers": {"otlp": {"protocols": {"http": {"endpoint": f"127.0.0.1:{port}"}}}},
        "exporters": {"otlphttp": {"endpoint": receiver.url}},
        "service": {
            "pipelines": {"traces": {"receivers": ["otlp"], "exporters": ["otlphttp"]}},
            "telemetry": {"metrics": {"level": "none"}},
        },
    }
    path = folder / "collector.yml"
    path.write_text(yaml.safe_dump(configuration), encoding="utf-8")
    with (folder / "collector.log").open("wb") as log:
        process = subprocess.Popen(
            [collector_program(), "--config", str(path)], stdout=log, stderr=log, preexec_fn=die_with_parent
        )
    try:
        wait_until(lambda: not is_free(port) or process.poll() is not None, "the collector listens", 60)
        assert process.poll() is None, (folder / "collector.log").read_text()
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)
