"""Tests of the commands that read the log while a partition has no leader."""

import asyncio

import pytest

from schemas.topics import BATCHES, DEAD, LEDGER, STREAMS, TOPICS
from services.archive import live
from services.bus import BusSettings, ClusterTopics, TailReader, partition_for
from services.cli.__main__ import main
from services.cli.audit import sources
from services.cli.commands import doctor, ledger
from services.cli.commands.kafka import dead, tail, topics
from services.cli.common import run_coroutine
from services.runtime.errors import UserError

REQUEST_ID = "01a200d2-0000-7000-8000-000000000000"
OWN = partition_for(REQUEST_ID, 4)


@pytest.fixture
def leaderless(monkeypatch):
    """Return a function that takes the leader of a partition away. No broker is connected."""

    async def run(_):
        await asyncio.Event().wait()

    def take(topic, number):
        found = ClusterTopics({each.name: each.partitions(4) for each in TOPICS}, frozenset({(topic.name, number)}))

        async def cluster_topics(_):
            return found

        for module in (sources, live, ledger, dead, tail, topics, doctor):
            monkeypatch.setattr(module, "cluster_topics", cluster_topics)

    monkeypatch.setattr(TailReader, "run", run)
    return take


@pytest.mark.parametrize(
    ("args", "topic", "number"),
    [
        (["audit", "show", REQUEST_ID], STREAMS, OWN),
        (["ledger"], LEDGER, 0),
        (["dead", "list"], DEAD, 0),
        (["tail", "--no-follow"], STREAMS, 2),
        (["tail", "--request", REQUEST_ID], STREAMS, OWN),
        (["topics"], BATCHES, 0),
    ],
)
def test_a_partition_without_a_leader_is_named(leaderless, capsys, args, topic, number):
    leaderless(topic, number)
    assert main([*args, "--kafka", "127.0.0.1:9"]) == 2
    said = f"partition {number} of topic {topic.name} has no leader: start the brokers that have its copies\n"
    assert capsys.readouterr().err == f"railbus {args[0]}: {said}"


def test_a_search_of_the_log_names_a_partition_without_a_leader(leaderless):
    leaderless(STREAMS, 3)
    with pytest.raises(UserError, match=r"partition 3 of topic railbus\.streams has no leader"):
        run_coroutine(live.live_records(BusSettings(), 0))


async def test_the_doctor_names_a_partition_without_a_leader(leaderless):
    leaderless(STREAMS, 3)
    check = await doctor._broker(BusSettings(), needed=True)
    assert (check.found, check.missing) == ("partition 3 of railbus.streams has no leader", True)
