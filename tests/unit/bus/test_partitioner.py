"""Test the partitioner against the hash values in Kafka's own tests, and against the hash function of aiokafka."""

from aiokafka.partitioner import murmur2 as reference
from hypothesis import given
from hypothesis import strategies as st

from services.bus import partition_for
from services.bus.partitioner import murmur2

# org.apache.kafka.common.utils.UtilsTest, as unsigned numbers.
KNOWN = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


def test_kafkas_own_values() -> None:
    assert {text: murmur2(text) for text in KNOWN} == {text: value & 0xFFFFFFFF for text, value in KNOWN.items()}


@given(st.binary(max_size=80))
def test_same_hash_as_aiokafka(data: bytes) -> None:
    assert murmur2(data) == reference(data)


@given(st.uuids(), st.integers(1, 1000))
def test_same_partition_as_aiokafka(request_id: object, count: int) -> None:
    key = str(request_id)
    assert partition_for(key, count) == (reference(key.encode()) & 0x7FFFFFFF) % count
