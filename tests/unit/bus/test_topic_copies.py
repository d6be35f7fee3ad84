import pytest

from services.bus.kafka.topic_copies import Copies, complaint, expected_copies, wanted_copies
from services.bus.settings import BusSettings
from services.runtime.errors import UserError


@pytest.mark.parametrize(("brokers", "expected"), [(1, (1, 1)), (2, (2, 1)), (3, (3, 2)), (7, (3, 2))])
def test_copies_by_the_number_of_brokers(brokers: int, expected: tuple[int, int]) -> None:
    assert wanted_copies(BusSettings(), brokers) == expected


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({"replication": 1}, (1, 1)),
        ({"replication": 5}, (5, 2)),
        ({"min_insync_replicas": 1}, (3, 1)),
        ({"replication": 4, "min_insync_replicas": 3}, (4, 3)),
    ],
)
def test_what_was_said_counts(said: dict[str, int], expected: tuple[int, int]) -> None:
    assert wanted_copies(BusSettings(**said), 3) == expected  # type: ignore[arg-type]


def test_more_must_have_it_than_there_are() -> None:
    with pytest.raises(UserError, match=r"RAILBUS_MIN_INSYNC_REPLICAS=2 needs as many copies, and a topic gets 1"):
        wanted_copies(BusSettings(min_insync_replicas=2), 1)


def test_too_few_brokers_for_a_setting_may_be_an_outage() -> None:
    said = BusSettings(min_insync_replicas=2)
    assert expected_copies(said, 1) is None
    assert expected_copies(said, 3) == (3, 2)
    assert expected_copies(BusSettings(), 1) == (1, 1)
    with pytest.raises(UserError, match=r"RAILBUS_MIN_INSYNC_REPLICAS=2 needs as many copies, and a topic gets 1"):
        expected_copies(BusSettings(replication=1, min_insync_replicas=2), 3)


def test_one_warning_names_every_topic_with_fewer() -> None:
    found = {"a": Copies(1, 1), "b": Copies(3, 2), "c": Copies(3, 1)}
    text = complaint(Copies(3, 2), found)
    assert text is not None
    assert text.startswith("a, c: replication factor 1 and min.insync.replicas=1, where replication factor 3 and")
    assert text.endswith("set RAILBUS_REPLICATION=1 and RAILBUS_MIN_INSYNC_REPLICAS=1")
    assert complaint(Copies(1, 1), found) is None
