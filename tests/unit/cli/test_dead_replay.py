import pytest

from schemas.topics import REQUESTS
from services.bus import Position, partition_for
from services.cli.__main__ import main
from services.cli.commands.kafka import dead
from services.cli.show.dead_letters import DeadLetterRecord

REQUEST_ID = next(
    each for each in (f"01a200d2-0000-7000-8000-{n:012d}" for n in range(100)) if partition_for(each, 8) >= 4
)


def test_a_request_is_written_to_the_partition_of_the_brokers_topic(monkeypatch, capsys):
    letter = DeadLetterRecord(
        number=0, at_us=0, source="router/1", topic=REQUESTS.name, partition=0, offset=0, reason="", value=b"{}",
        key=REQUEST_ID.encode(), headers=(),
    )  # fmt: skip
    written = []

    async def read(*_):
        return [letter], 1

    async def counts(_):
        return {REQUESTS.name: 8}

    async def write(_, records, *, name):
        written.extend(records)
        return [Position(record.partition, 0) for record in records]

    monkeypatch.setattr(dead, "_read_dead_letters", read)
    monkeypatch.setattr(dead, "partition_counts", counts)
    monkeypatch.setattr(dead, "write_raw_records", write)
    assert main(["dead", "replay", "0", "--yes", "--kafka", "127.0.0.1:9"]) == 0
    assert [record.partition for record in written] == [partition_for(REQUEST_ID, 8)]


@pytest.mark.parametrize(("limit", "wanted"), [([], 150), (["--limit", "5"], 150), (["--limit", "200"], 200)])
def test_all_letters_that_are_named_are_read(monkeypatch, capsys, limit, wanted):
    limits = []

    async def read(_, only, start, most):
        limits.append(most)
        return [], 0

    monkeypatch.setattr(dead, "_read_dead_letters", read)
    numbers = [str(number) for number in range(150)]
    assert main(["dead", "replay", *numbers, "--yes", "--kafka", "127.0.0.1:9", *limit]) == 2
    assert limits == [wanted]


def test_more_numbers_than_are_held_at_once_are_refused(capsys):
    numbers = [str(number) for number in range(1_001)]
    assert main(["dead", "replay", *numbers, "--yes", "--kafka", "127.0.0.1:9"]) == 2
    assert capsys.readouterr().err == "railbus dead: 1001 numbers are too many: give at most 1000 at once\n"
