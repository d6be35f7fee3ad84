"""Test that replies on a websocket are limited in size and number, whatever a client sends and reads."""

import asyncio
import hashlib

import orjson
import pytest
from aiohttp import WSMessage, WSMsgType

from schemas.ids import uuid7
from services.edge.delivery.client_writer import ClientWriter
from services.edge.errors import ApiError
from services.edge.http.access.api_keys import ApiKeys
from services.edge.http.websockets import MAX_REF_CHARS, WebSocketConnection
from services.edge.requests.parse import ArrivalTimes, parse_chat_request
from services.runtime.chat_body import MAX_QUOTED_CHARS

LIMIT_BYTES = 65_536
LONGEST_REPLY_BYTES = 2_048
KEYED = ApiKeys({"0" * 64: "acme"})
REQUEST_ID = uuid7(1_763_700_000_000, 7)


class UnreadTransport:
    """The transport of a client that reads nothing."""

    def __init__(self):
        self.frames = []
        self.size = 0

    def write(self, data):
        self.frames.append(data)
        self.size += len(data)

    def get_write_buffer_size(self):
        return self.size

    def is_closing(self):
        return False


class IdleHandler:
    """A stand-in for the HTTP connection's handler, with only what a ``WebSocketConnection`` uses in these tests."""

    arrival = ArrivalTimes.at(0)

    def body_taken(self, count):
        assert count > 0

    def busy(self):
        pass


class ScriptedResponse:
    """A websocket whose client sends ``messages``. ``taken`` counts the messages that the edge has read."""

    def __init__(self, messages):
        self._messages = iter(messages)
        self.taken = 0
        self.closed_with = None

    def __aiter__(self):
        return self

    async def __anext__(self):
        for message in self._messages:
            self.taken += 1
            return message
        await asyncio.sleep(0)  # the tasks of the messages begin
        raise StopAsyncIteration

    async def close(self, *, code, message):
        self.closed_with = (code, message)


async def served(messages, keys=KEYED, service=None):
    transport, response = UnreadTransport(), ScriptedResponse(messages)
    tenant = "local" if keys.allows_anonymous else None
    connection = WebSocketConnection(
        response, ClientWriter(transport, LIMIT_BYTES), service, keys, tenant, 16, IdleHandler()
    )
    await connection.serve()
    return transport, response


def text(**message):
    return WSMessage(WSMsgType.TEXT, orjson.dumps(message).decode(), None)


@pytest.mark.parametrize(
    "message",
    [
        text(type="ask", ref="r" * 1_000_000),
        text(type="cancel", request_id="x" * 1_000_000),
        text(type="hello", key="wrong", ref="r"),
        text(type="hello", key=None),
        WSMessage(WSMsgType.TEXT, "{", None),
        WSMessage(WSMsgType.BINARY, b"x" * 1_000, None),
        WSMessage(WSMsgType.PING, b"p" * 125, None),
    ],
)
async def test_unread_replies_are_bounded_and_end_the_connection(message):
    transport, response = await served(message for _ in range(2_000))
    assert transport.size <= LIMIT_BYTES + LONGEST_REPLY_BYTES
    assert response.closed_with == (1013, b"reads too slowly: resume at the last id")
    assert response.taken < 2_000


async def test_a_long_ref_is_refused_and_a_short_one_is_repeated():
    transport, response = await served([text(type="x", ref="r" * MAX_REF_CHARS), text(type="x", ref="r" * 257)])
    short, long = (orjson.loads(frame[4:]) for frame in transport.frames)
    assert short["ref"] == "r" * MAX_REF_CHARS
    assert "ref" not in long
    assert (long["error"]["code"], long["error"]["param"]) == ("invalid_value", "ref")
    assert response.closed_with is None


@pytest.mark.parametrize("ref", [0, -1, 1_763_700_000.25, "", "a"])
async def test_a_number_and_a_text_are_repeated_as_ref(ref):
    transport, _ = await served([text(type="ping", ref=ref)])
    assert orjson.loads(transport.frames[0][2:]) == {"type": "pong", "ref": ref}


async def test_every_reply_repeats_the_ref():
    about = {"request_id": REQUEST_ID}
    messages = [text(type="hello", ref=1), text(type="resume", ref=2, **about), text(type="cancel", ref=3, **about)]
    transport, _ = await served(messages, keys=ApiKeys())
    assert [orjson.loads(frame[2:]) for frame in transport.frames] == [
        {"type": "welcome", "ref": 1}, {"type": "detached", "ref": 3, **about},
    ]  # fmt: skip


async def test_a_later_hello_does_not_change_the_tenant_of_a_request():
    class Service:
        async def resume(self, request_id, after, client):
            tenants.append(client.tenant)
            raise ApiError(404, "No such request.", code="request_not_found")

    tenants = []
    keys = ApiKeys({hashlib.sha256(key).hexdigest(): key.decode() for key in (b"acme", b"bolt")})
    resume = text(type="resume", request_id=REQUEST_ID)
    await served([text(type="hello", key="acme"), resume, text(type="hello", key="bolt"), resume], keys, Service())
    assert tenants == ["acme", "bolt"]


async def test_a_long_request_id_is_not_repeated():
    transport, _ = await served([text(type="cancel", request_id="x" * 1_000)], keys=ApiKeys())
    error = orjson.loads(transport.frames[0][4:])
    assert "request_id" not in error
    assert error["error"]["code"] == "invalid_request_id"


@pytest.mark.parametrize("extension", [{"x" * 100_000: 1}, {"lane": "x" * 100_000}])
def test_an_error_repeats_little_of_what_was_sent(extension):
    with pytest.raises(ApiError) as error:
        parse_chat_request({"messages": [{"role": "user", "content": "x"}], "railbus": extension})
    assert len(error.value.envelope) < 4 * MAX_QUOTED_CHARS
