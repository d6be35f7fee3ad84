"""Test that the head of a streamed response is sent only when the stream begins.

If an error occurs before that, the edge can still send an error response instead.
"""

from services.edge.delivery.client_writer import ClientWriter
from services.edge.delivery.hub import Hub
from services.edge.errors import ApiError
from services.edge.http.responses import LAST_CHUNK, http_chunk
from tests.support.edge_answers import AnswerWriter
from tests.unit.edge.test_subscription import ID, Wire, records, stream_of

HEAD = b"HTTP/1.1 200 OK\r\n\r\n"


async def test_the_head_of_the_response_leaves_with_the_first_bytes():
    hub, wire = Hub(), Wire()
    stream = stream_of(hub)
    writer = ClientWriter(wire, 10_000, http_chunk, head=HEAD, terminator=LAST_CHUNK)
    stream.attach(writer)
    assert not writer.has_begun
    hub.handle(records([AnswerWriter(ID).started(), AnswerWriter(ID).chunk("a")]))
    assert writer.has_begun
    assert len(wire.writes) == 1
    assert wire.writes[0].startswith(HEAD)
    hub.handle(records([AnswerWriter(ID).closed()], 2))
    assert wire.data.count(HEAD) == 1


async def test_an_error_before_the_first_bytes_is_left_to_the_response():
    hub, wire, ended, detached = Hub(), Wire(), [], []
    stream = stream_of(hub, ended=ended, detached=detached)
    writer = ClientWriter(wire, 10_000, http_chunk, head=HEAD, terminator=LAST_CHUNK)
    stream.attach(writer)
    error = ApiError(503, "No room.", code="no_room")
    stream.end("error", error)
    assert (stream.early_error, wire.writes, writer.has_begun) == (error, [], False)
    assert (ended, detached) == (["error"], ["error"])
    assert stream.ended.is_set()


async def test_an_error_after_the_head_is_sent_in_the_stream():
    hub, wire = Hub(), Wire()
    stream = stream_of(hub)
    writer = ClientWriter(wire, 10_000, http_chunk, head=HEAD, terminator=LAST_CHUNK)
    stream.attach(writer)
    writer.begin()
    writer.begin()
    stream.end("error", ApiError(503, "No room.", code="no_room"))
    assert stream.early_error is None
    assert wire.writes[0] == HEAD
    assert wire.data.count(HEAD) == 1
    assert b"no_room" in wire.data
    assert wire.data.endswith(LAST_CHUNK)
