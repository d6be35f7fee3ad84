import pytest

from services.broker.storage.topic_config import SMALLEST_SEGMENT_BYTES, InvalidConfig, TopicConfig


def test_settings_are_taken_and_shown():
    config = TopicConfig().with_settings({"retention.ms": "5000", "retention.bytes": "-1", "cleanup.policy": "compact"})
    assert (config.retention_ms, config.retention_bytes) == (5000, -1)
    shown = config.entries()
    assert shown["retention.ms"] == "5000"
    assert shown["cleanup.policy"] == "compact"
    assert config.given["retention.bytes"] == "-1"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("retention.ms", "soon"),
        ("retention.ms", "-2"),
        ("retention.ms", None),
        ("retention.bytes", str(2**63)),
        ("segment.bytes", "1000"),
        ("cleanup.policy", "never"),
        ("compression.type", "gzip"),
        ("message.timestamp.type", "logappendtime"),
        ("no.such.name", "1"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(name, value):
    with pytest.raises(InvalidConfig, match=name):
        TopicConfig().with_settings({name: value})


@pytest.mark.parametrize(("value", "append_time"), [("CreateTime", False), ("LogAppendTime", True)])
def test_whose_time_a_record_has_is_taken_and_shown(value, append_time):
    config = TopicConfig().with_settings({"message.timestamp.type": value})
    assert config.append_time is append_time
    assert config.entries()["message.timestamp.type"] == value
    assert TopicConfig().entries()["message.timestamp.type"] == "CreateTime"


@pytest.mark.parametrize("name", ["segment.ms", "min.insync.replicas", "delete.retention.ms"])
def test_kafkas_names_that_mean_nothing_here_are_kept_and_shown(name):
    assert TopicConfig().with_settings({name: "1"}).entries()[name] == "1"


def test_segments_are_an_eighth_of_the_retention_within_bounds():
    assert TopicConfig(retention_bytes=8 * 1024 * 1024).roll_bytes == 1024 * 1024
    assert TopicConfig(retention_bytes=1000).roll_bytes == SMALLEST_SEGMENT_BYTES
    assert TopicConfig(retention_bytes=-1).roll_bytes == TopicConfig(retention_bytes=2**40).roll_bytes
