"""Keys, rates, origins, homes, positions, frames: small rules, each held by itself."""

import hashlib
import io
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from websockets.frames import Opcode
from websockets.protocol import CLIENT, Protocol

from schemas.ids import is_uuid7, time_ms, uuid7
from services.bus import partition_for
from services.edge.chat import ChatStream
from services.edge.completion import Completion
from services.edge.encodings import Encoding
from services.edge.errors import ApiError
from services.edge.framing import http_chunk, sse, text_frame
from services.edge.homes import homes_of, id_at_home
from services.edge.keys import Keys, bearer, load_keys
from services.edge.limits import LocalLimiter, Rate, decide
from services.edge.opstream import OpEvents, OpFrames
from services.edge.origins import Origins
from services.edge.positions import OpId, parse_op_id, parse_request_id
from services.edge.session import Session
from services.runtime.errors import UserError

DIGEST = hashlib.sha256(b"key").hexdigest()


@pytest.mark.parametrize("suffix", ["toml", "json"])
def test_a_keys_file(tmp_path, suffix):
    file = tmp_path / f"keys.{suffix}"
    file.write_text(f'[keys]\n{DIGEST} = "acme"\n' if suffix == "toml" else f'{{"keys": {{"{DIGEST}": "acme"}}}}')
    keys = load_keys(str(file))
    assert not keys.open
    assert keys.tenant("key") == "acme"
    for wrong in ("Key", "", None, DIGEST, "k\udcff"):
        with pytest.raises(ApiError) as error:
            keys.tenant(wrong)
        assert error.value.status == 401


@pytest.mark.parametrize(
    ("content", "said"),
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
def test_a_wrong_keys_file_is_the_owners_mistake(tmp_path, content, said):
    file = tmp_path / "keys.toml"
    file.write_text(content)
    with pytest.raises(UserError) as error:
        load_keys(str(file))
    assert said in str(error.value)
    assert "secret" not in str(error.value) or "secret..." in str(error.value)


@pytest.mark.parametrize("place", [0, 20, 63])
def test_every_digit_of_a_hash_counts(place):
    near = DIGEST[:place] + ("0" if DIGEST[place] != "0" else "1") + DIGEST[place + 1 :]
    with pytest.raises(ApiError):
        Keys({near: "acme"}).tenant("key")


def test_without_a_file_all_are_local():
    assert load_keys(None).open
    assert Keys().tenant(None) == "local"


def test_bearer():
    assert bearer("Bearer abc") == bearer("bearer  abc ") == "abc"
    assert bearer("Basic abc") is bearer("Bearer") is bearer("") is bearer(None) is None


@settings(deadline=None)
@given(st.integers(1, 600), st.integers(1, 20), st.lists(st.integers(0, 20_000_000), min_size=1, max_size=60))
def test_no_window_sees_more_than_the_rate_and_a_burst(per_minute, burst, gaps):
    rate = Rate(per_minute, burst)
    now, arrival, passed = 1_000_000_000, 0, []
    for gap in gaps:
        now += gap
        decided = decide(rate, arrival, now)
        arrival = decided.arrival_us
        if decided.wait_us == 0:
            passed.append(now)
        else:
            assert decide(rate, arrival, now + decided.wait_us).wait_us == 0  # it says when
            assert decide(rate, arrival, now + decided.wait_us - 1).wait_us > 0
    for first, start in enumerate(passed):
        for last in range(first, len(passed)):
            assert last - first + 1 <= burst + (passed[last] - start) / rate.interval_us + 1e-9


def test_tenants_do_not_share_a_rate_and_the_oldest_is_forgotten():
    limiter = LocalLimiter(Rate(1, 1), size=2)
    assert [limiter.wait_us(tenant, 0) > 0 for tenant in ("a", "a", "b", "c", "a")] == [
        False,
        True,
        False,
        False,
        False,
    ]


@pytest.mark.parametrize(
    ("kind", "encoder", "transport", "until_closed"),
    [
        ("chunks", ChatStream, "sse", False),
        ("completion", Completion, "http", False),
        ("op_events", OpEvents, "sse", True),
        ("op_frames", OpFrames, "websocket", True),
    ],
)
def test_an_encoding_says_how_its_stream_is_served(kind, encoder, transport, until_closed):
    encoding = Encoding(kind=kind)
    assert type(encoding.encoder(Session(uuid7(1, 1), 0), "model")) is encoder
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
def test_which_pages_may_use_it(keyed, host, origin, allowed):
    rule = Origins(keyed=keyed, allowed=frozenset({"https://chat.example"}))
    if allowed:
        rule.check(host, origin)
    else:
        with pytest.raises(ApiError) as error:
            rule.check(host, origin)
        assert error.value.status == 403


@settings(deadline=None)
@given(st.sets(st.integers(0, 31), min_size=1), st.integers())
def test_a_new_id_lives_at_home(homes, seed):
    random = Random(seed)
    made = id_at_home(
        frozenset(homes),
        partition_of=lambda request_id: partition_for(request_id, 32),
        now_ms=1_763_700_000_000,
        random_bits=lambda: random.getrandbits(74),
    )
    assert made is not None
    assert is_uuid7(made)
    assert partition_for(made, 32) in homes
    assert time_ms(made) == 1_763_700_000_000


def test_no_id_without_a_home_or_luck():
    asked = {"partition_of": lambda _: 1, "now_ms": 1, "random_bits": lambda: 5}
    assert id_at_home(frozenset(), **asked) is None
    assert id_at_home(frozenset({0}), **asked) is None


def test_more_edges_than_partitions_share():
    assert homes_of(frozenset({1, 2}), "edge", 4) == {1, 2}
    assert homes_of(frozenset(), "edge", 4) == homes_of(frozenset(), "edge", 4) <= {0, 1, 2, 3}


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
def test_frames_are_read_by_another_reader(size):
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
    assert sse(b"{}") == b"data: {}\n\n"
    assert sse(b"{}", b"1:2:3") == b"id: 1:2:3\ndata: {}\n\n"
