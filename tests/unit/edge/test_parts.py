"""Test small parts of the edge: API keys, rate limits, origins, home partitions, op ids and encodings."""

import gzip
import hashlib
import io
import tracemalloc
import zlib
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from websockets.frames import Opcode
from websockets.protocol import CLIENT, Protocol

from schemas.ids import is_uuid7, time_ms, uuid7
from services.bus import partition_for
from services.edge.batches.objects import page_of, parse_metadata
from services.edge.delivery.session import DeliverySession
from services.edge.encoders.chat_chunks import ChatChunkEncoder
from services.edge.encoders.completion import CompletionEncoder
from services.edge.encoders.encoding import Encoding
from services.edge.encoders.sse import SseEncoder, sse_event
from services.edge.encoders.websocket import WebSocketEncoder, text_frame
from services.edge.errors import ApiError
from services.edge.http.access.api_keys import ApiKeys, bearer_token, load_keys
from services.edge.http.access.origins import OriginGuard
from services.edge.http.request_body import MAX_BODY_BYTES, unpack
from services.edge.http.responses import http_chunk
from services.edge.log.follow_plan import home_partitions_for, new_local_request_id
from services.edge.log.positions import OpId, parse_op_id, parse_request_id
from services.edge.requests.parse import parse_chat_request
from services.edge.requests.rate_limit import LocalLimiter, Rate, gcra, tokens_of
from services.edge.requests.shared_limits import IDEMPOTENCY_TTL_S, IdempotencyRecord, LocalRecords
from services.runtime.errors import UserError
from services.stream import AS_STARTED

DIGEST = hashlib.sha256(b"key").hexdigest()


@pytest.mark.parametrize("suffix", ["toml", "json"])
def test_a_keys_file(tmp_path, suffix):
    file = tmp_path / f"keys.{suffix}"
    file.write_text(f'[keys]\n{DIGEST} = "acme"\n' if suffix == "toml" else f'{{"keys": {{"{DIGEST}": "acme"}}}}')
    keys = load_keys(str(file))
    assert not keys.allows_anonymous
    assert keys.tenant("key") == "acme"
    for wrong in ("Key", "", None, DIGEST, "k\udcff"):
        with pytest.raises(ApiError) as error:
            keys.tenant(wrong)
        assert error.value.status == 401


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", "table [keys]"),
        ("keys = 5", "table [keys]"),
        ("[keys]", "table [keys]"),
        ("[keys]\nsecret = 'acme'", "not a SHA-256"),
        (f"[keys]\n{DIGEST} = 'a b'", "must be 1 to 64"),
        (f"[keys]\n{DIGEST} = 5", "must be 1 to 64"),
        ("not toml", "TOML"),
        ("[keys]\n" + "\n".join(f"{n:064x} = 'a'" for n in range(1_001)), "at most 1000"),
    ],
)
def test_a_wrong_keys_file_is_a_user_error(tmp_path, content, expected):
    file = tmp_path / "keys.toml"
    file.write_text(content)
    with pytest.raises(UserError) as error:
        load_keys(str(file))
    assert expected in str(error.value)
    assert "secret" not in str(error.value) or "secret..." in str(error.value)


@pytest.mark.parametrize("place", [0, 20, 63])
def test_every_digit_of_a_hash_counts(place):
    near = DIGEST[:place] + ("0" if DIGEST[place] != "0" else "1") + DIGEST[place + 1 :]
    with pytest.raises(ApiError):
        ApiKeys({near: "acme"}).tenant("key")


def test_without_a_keys_file_the_tenant_is_local():
    assert load_keys(None).allows_anonymous
    assert ApiKeys().tenant(None) == "local"


def test_bearer():
    for header in ("Bearer abc", "bearer  abc "):
        assert bearer_token({"Authorization": header}) == "abc"
    for header in ("Basic abc", "Bearer", ""):
        assert bearer_token({"Authorization": header}) is None
    assert bearer_token({}) is None


@settings(deadline=None)
@given(st.integers(1, 600), st.integers(1, 20), st.lists(st.integers(0, 20_000_000), min_size=1, max_size=60))
def test_no_window_passes_more_than_the_rate_and_a_burst(per_minute, burst, gaps):
    rate = Rate(per_minute, burst)
    now, arrival, passed = 1_000_000_000, 0, []
    for gap in gaps:
        now += gap
        decided = gcra(rate, arrival, now)
        arrival = decided.arrival_us
        if decided.wait_us == 0:
            passed.append(now)
        else:
            assert gcra(rate, arrival, now + decided.wait_us).wait_us == 0  # it says when
            assert gcra(rate, arrival, now + decided.wait_us - 1).wait_us > 0
    for first, start in enumerate(passed):
        for last in range(first, len(passed)):
            assert last - first + 1 <= burst + (passed[last] - start) / rate.cost_us() + 1e-9


def test_tenants_do_not_share_a_rate_and_the_oldest_is_dropped():
    limiter = LocalLimiter(Rate(1, 1), size=2)
    assert [limiter.wait_us(tenant, 0) > 0 for tenant in ("a", "a", "b", "c", "a")] == [
        False,
        True,
        False,
        False,
        False,
    ]


def test_an_idempotency_key_ends_after_a_day_and_the_oldest_is_dropped():
    first, second = IdempotencyRecord("1", "x"), IdempotencyRecord("2", "x")
    day_us = IDEMPOTENCY_TTL_S * 1_000_000
    records = LocalRecords(size=2)
    assert records.claim("a", first, 0) is None
    assert records.claim("a", second, day_us - 1) == first
    assert records.claim("a", second, day_us) is None
    assert records.claim("a", first, day_us + 1) == second
    for name in ("b", "c"):
        assert records.claim(name, first, day_us) is None
    assert records.claim("a", first, day_us) is None
    records.forget("a")
    assert records.claim("a", second, day_us) is None


@pytest.mark.parametrize(
    ("kind", "encoder", "transport", "until_closed"),
    [
        ("chunks", ChatChunkEncoder, "sse", False),
        ("completion", CompletionEncoder, "http", False),
        ("op_events", SseEncoder, "sse", True),
        ("op_frames", WebSocketEncoder, "websocket", True),
    ],
)
def test_each_encoding_has_its_encoder_and_transport(kind, encoder, transport, until_closed):
    encoding = Encoding(kind=kind)
    assert type(encoding.encoder(DeliverySession(uuid7(1, 1), 0, AS_STARTED), "model")) is encoder
    assert (encoding.transport, encoding.until_closed) == (transport, until_closed)


@pytest.mark.parametrize(
    ("keyed", "host", "origin", "allowed"),
    [
        (False, "127.0.0.1:8080", None, True),
        (False, "localhost:8080", "http://localhost:8080", True),
        (False, "[::1]:8080", "http://[::1]:8080", True),
        (False, "localhost:8080", "http://localhost:9999", False),
        (False, "localhost:8080", "https://evil.example", False),
        (False, "evil.example:8080", "http://evil.example:8080", False),
        (False, "evil.example", None, False),
        (False, None, None, False),
        (False, "localhost", "null", False),
        (False, "localhost", "https://chat.example", True),
        (True, "chat.internal", None, True),
        (True, "chat.internal", "https://chat.internal", True),
        (True, "chat.internal", "https://evil.example", False),
        (True, None, "https://evil.example", False),
    ],
)
def test_hosts_and_origins(keyed, host, origin, allowed):
    rule = OriginGuard(keyed=keyed, allowed=frozenset({"https://chat.example"}))
    if allowed:
        rule.check(host, origin)
    else:
        with pytest.raises(ApiError) as error:
            rule.check(host, origin)
        assert error.value.status == 403


@pytest.mark.parametrize("keyed", [True, False])
@pytest.mark.parametrize(
    ("host", "origin", "param"), [("[", None, "Host"), ("[::1", "null", "Host"), ("localhost", "http://[", "Origin")]
)
def test_a_malformed_host_or_origin_is_400(keyed, host, origin, param):
    with pytest.raises(ApiError) as error:
        OriginGuard(keyed=keyed).check(host, origin)
    assert (error.value.status, error.value.param) == (400, param)


@pytest.mark.parametrize(("encoding", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
def test_unpacking_is_bounded(encoding, pack):
    assert unpack(pack(b"x" * MAX_BODY_BYTES), encoding) == b"x" * MAX_BODY_BYTES
    bomb = pack(b"\0" * 64_000_000)
    tracemalloc.start()
    with pytest.raises(ApiError) as error:
        unpack(bomb, encoding)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert error.value.status == 413
    assert peak < 4 * MAX_BODY_BYTES


@settings(deadline=None)
@given(st.binary(max_size=40), st.sampled_from(["gzip", "deflate"]), st.integers(0, 60))
def test_any_bytes_are_unpacked_or_refused(raw, encoding, cut):
    packed = gzip.compress(raw) if encoding == "gzip" else zlib.compress(raw)
    assert unpack(packed, encoding) == raw
    for broken in (raw, packed[: min(cut, len(packed) - 1)], packed + b"x"):
        with pytest.raises(ApiError) as error:
            unpack(broken, encoding)
        assert (error.value.status, error.value.code) == (400, "invalid_encoding")


@settings(deadline=None)
@given(st.sets(st.integers(0, 31), min_size=1), st.integers())
def test_a_new_id_hashes_into_a_home_partition(homes, seed):
    random = Random(seed)
    made = new_local_request_id(
        frozenset(homes),
        partition_of=lambda request_id: partition_for(request_id, 32),
        now_ms=1_763_700_000_000,
        random_bits=lambda: random.getrandbits(74),
    )
    assert made is not None
    assert is_uuid7(made)
    assert partition_for(made, 32) in homes
    assert time_ms(made) == 1_763_700_000_000


def test_no_id_without_a_home_or_after_too_many_tries():
    arguments = {"partition_of": lambda _: 1, "now_ms": 1, "random_bits": lambda: 5}
    assert new_local_request_id(frozenset(), **arguments) is None
    assert new_local_request_id(frozenset({0}), **arguments) is None


def test_more_edges_than_partitions_share():
    assert home_partitions_for(frozenset({1, 2}), "edge", 4) == {1, 2}
    assert home_partitions_for(frozenset(), "edge", 4) == home_partitions_for(frozenset(), "edge", 4) <= {0, 1, 2, 3}


@settings(deadline=None)
@given(st.integers(0, 999_999), st.integers(0, 10**18 - 1), st.integers(0, 999_999))
def test_positions_are_read_as_written(partition, offset, nth):
    assert parse_op_id(str(OpId(partition, offset, nth))) == (partition, offset, nth)


@settings(deadline=None)
@given(st.text(max_size=20))
def test_a_position_or_an_error(text):
    try:
        parse_op_id(text)
    except ApiError as error:
        refused = error
    else:
        assert text.count(":") == 2
        return
    assert refused.code == "invalid_position"


def test_request_ids():
    request_id = uuid7(0xABCDEF, 1)
    assert parse_request_id(request_id) == parse_request_id(f"chatcmpl-{request_id}") == request_id
    for wrong in (
        "",
        "x",
        request_id.upper(),
        request_id + "0",
        request_id + "\n",
        "chatcmpl-",
        f"chatcmpl-chatcmpl-{request_id}",
    ):
        with pytest.raises(ApiError):
            parse_request_id(wrong)


@pytest.mark.parametrize("size", [0, 1, 125, 126, 127, 65_535, 65_536, 70_000])
def test_frames_are_read_by_another_implementation(size):
    reader = Protocol(CLIENT, max_size=None)
    reader.receive_data(text_frame(b"x" * size) + text_frame(b"end"))
    assert [(frame.opcode, frame.fin, len(frame.data)) for frame in reader.events_received()] == [
        (Opcode.TEXT, True, size), (Opcode.TEXT, True, 3),
    ]  # fmt: skip


@settings(deadline=None)
@given(st.lists(st.binary(min_size=1, max_size=300)))
def test_chunks_are_read_back(parts):
    stream = io.BytesIO(b"".join(http_chunk(part) for part in parts) + b"0\r\n\r\n")
    read = []
    while size := int(stream.readline(), 16):
        read.append(stream.read(size))
        assert stream.read(2) == b"\r\n"
    assert read == parts


def test_events():
    assert sse_event(b"{}") == b"data: {}\n\n"
    assert sse_event(b"{}", b"1:2:3") == b"id: 1:2:3\ndata: {}\n\n"


@pytest.mark.parametrize("limit", ["0", "10001", "", "1e1", "\u0663", "0000000019999", "000000001" + "0" * 5_000])
def test_a_page_of_a_list_has_a_limit(limit):
    with pytest.raises(ApiError) as caught:
        page_of([], {"limit": limit})
    assert (caught.value.status, caught.value.param) == (400, "limit")


def test_a_page_says_whether_more_follows():
    files = [{"id": name} for name in "abc"]
    pages = [page_of(files, {"limit": "2"}), page_of(files, {"limit": "2", "after": "b"}), page_of(files, {})]
    assert [([each["id"] for each in page["data"]], page["has_more"]) for page in pages] == [
        (["a", "b"], True), (["c"], False), (["a", "b", "c"], False),
    ]  # fmt: skip


def test_metadata_has_short_keys_and_longer_texts():
    longest = {"k" * 64: "t" * 512}
    assert parse_metadata(longest) == tuple(longest.items())
    for wrong in ({"k" * 65: ""}, {"": ""}, {"k": "t" * 513}, {str(nth): "" for nth in range(17)}, {"k": 1}, []):
        with pytest.raises(ApiError):
            parse_metadata(wrong)


def test_a_part_of_a_token_is_charged_as_a_token():
    request = parse_chat_request({"messages": [{"role": "user", "content": "x" * 9}], "max_tokens": 5}).template
    assert tokens_of(request) == 8
    assert Rate(60, 10).cost_us(1_000) == Rate(60, 10).cost_us(10)
