"""Test that encoded spans are the same with and without the cache of the encoder."""

import pytest

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="pip install -r requirements/otel.txt")

from opentelemetry.exporter.otlp.proto.common import _internal
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans

from services.tracer.encoder_cache import MOST_KEPT, keep_encoded_texts
from services.tracer.exporter import Converter
from tests.unit.stream.test_latency import plain_story
from tests.unit.tracer.test_spans import traced


@pytest.fixture
def restored(monkeypatch):
    monkeypatch.setattr(_internal, "_encode_key_value", _internal._encode_key_value)


def encoded():
    trace, convert = traced(plain_story()), Converter()
    return encode_spans(list(convert.trace(trace)))


def test_spans_are_the_same_with_and_without(restored):
    before = encoded()
    assert keep_encoded_texts()
    assert keep_encoded_texts(), "twice is once"
    again = [encoded() for _ in range(3)]
    kept = _internal._encode_key_value.kept
    assert kept.cache_info().hits > 50
    for _ in range(MOST_KEPT + 10):
        _internal._encode_key_value("other", str(_))
    assert kept.cache_info().currsize == MOST_KEPT
    for message in [*again, encoded()]:
        names = [span.name for group in message.resource_spans for scope in group.scope_spans for span in scope.spans]
        assert len(names) == 12
        assert _comparable(message) == _comparable(before)


def _comparable(message):
    """Return service, name and attributes of each encoded span, without ids that differ between requests."""
    found = []
    for group in message.resource_spans:
        service = [str(each) for each in group.resource.attributes]
        for span in group.scope_spans[0].spans:
            values = {each.key: str(each.value) for each in span.attributes}
            changing = {"railbus.request_id", "gen_ai.response.id", "railbus.run"}
            found.append((service, span.name, {key: value for key, value in values.items() if key not in changing}))
    return found


def test_an_encoder_that_has_changed_is_left_alone(monkeypatch):
    monkeypatch.delattr(_internal, "_encode_key_value")
    assert not keep_encoded_texts()
