import errno
import fcntl
import json
import random
import socket
from pathlib import Path

import pytest

from services.cli.__main__ import _parser
from services.cli.tree import config
from services.cli.tree.config import check_counts, check_engine_flags, check_log_flags, tree_config
from services.cli.tree.ports import CANDIDATE_PORTS, is_free
from services.cli.tree.process_specs import process_specs
from services.runtime import UserError


def flags(*given):
    return _parser(["up"]).parse_args(["up", *given])


@pytest.fixture
def occupied(monkeypatch):
    """During the test, replace the default ports of the edge and the broker with ports that are in use."""
    with socket.socket() as edge, socket.socket() as broker:
        for taken, name in ((edge, "EDGE_PORT"), (broker, "KAFKA_PORT")):
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            monkeypatch.setattr(config, name, taken.getsockname()[1])
        yield


@pytest.mark.usefixtures("occupied")
def test_a_usual_port_that_is_taken_is_reported_with_its_replacement(tmp_path):
    lines = []
    made = tree_config(flags(), tmp_path, lines.append)
    assert f"port {config.EDGE_PORT} is in use: the edge takes port {made.edge_port} instead; choose one" in lines[0]
    assert f"port {config.KAFKA_PORT} is in use: the embedded broker takes port {made.broker_port} instead" in lines[1]
    assert f"--kafka 127.0.0.1:{config.KAFKA_PORT}" in lines[1]


@pytest.mark.parametrize(
    ("given", "named", "url"),
    [
        ((), "redis://r:6379/0", "redis://r:6379/0"),
        (("--no-redis",), "redis://r:6379/0", None),
        ((), "", "redis://127.0.0.1:"),
        ((), " ", "redis://127.0.0.1:"),
    ],
)
def test_redis_is_named_started_or_left_out(tmp_path, monkeypatch, given, named, url):
    monkeypatch.setenv("RAILBUS_REDIS_URL", named)
    monkeypatch.setattr(config, "find_redis_program", lambda: Path("valkey-server"))
    made = tree_config(flags("--port", "0", *given), tmp_path, lambda _: None)
    assert (made.redis_url or "").startswith(url or "")
    assert (made.redis_url is None) == (url is None)
    assert (made.redis_port is None) == (url is None or url == named)


def test_a_collector_is_named_by_flag_or_by_opentelemetrys_variable(tmp_path, monkeypatch):
    monkeypatch.delenv(config.OTLP_ENDPOINT, raising=False)
    plain = tree_config(flags("--port", "0"), tmp_path, lambda _: None)
    assert (plain.traced, "tracer" in plain.health_ports) == (False, False)
    made = tree_config(flags("--port", "0", "--traces", "http://127.0.0.1:4318"), tmp_path, lambda _: None)
    assert (made.traced, "tracer" in made.health_ports) == (True, True)
    assert made.options[config.OTLP_ENDPOINT] == "http://127.0.0.1:4318"
    monkeypatch.setenv(config.OTLP_ENDPOINT, "http://127.0.0.1:4318")
    assert tree_config(flags("--port", "0"), tmp_path, lambda _: None).traced


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--draft-path", "x"), "--draft-path has no effect with engine llama: leave it out, or choose --engine vllm"),
        (("--engine", "simulated", "--model-path", "x"), "choose --engine llama or --engine vllm"),
        (("--upstream-url", "http://127.0.0.1:1"), "choose --engine openai"),
        (("--engine", "openai"), "--engine openai needs --upstream-url"),
    ],
)
def test_a_flag_that_the_engine_does_not_read_is_refused(monkeypatch, given, said):
    monkeypatch.delenv(config.UPSTREAM_URL, raising=False)
    with pytest.raises(UserError, match=said):
        check_engine_flags(flags(*given))


@pytest.mark.parametrize(("data_dir", "remedy"), [((), "RAILBUS_STATE_DIR"), (("--data-dir", "kept"), "--data-dir")])
def test_a_full_disk_under_the_log_is_found_before_anything_starts(tmp_path, monkeypatch, data_dir, remedy):
    def write_bytes(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Path, "write_bytes", write_bytes)
    with pytest.raises(UserError, match=f"No space left on device.: free some space, .* with {remedy}$"):
        tree_config(flags("--port", "0", *data_dir), tmp_path, lambda _: None)


def put_log(folder, partitions=4):
    """Write to ``folder`` the files that an embedded broker leaves, with one topic of ``partitions`` partitions."""
    (folder / "topics" / "railbus.requests" / "0").mkdir(parents=True)
    topics = {"railbus.requests": {"partitions": partitions, "config": {}}}
    (folder / "topics.json").write_text(json.dumps({"format": 1, "topics": topics}))
    for name in ("lock", "groups.json", "offsets.jsonl"):
        (folder / name).write_text("")


def test_an_earlier_trees_log_stays_but_not_its_members_or_a_probe(tmp_path):
    put_log(tmp_path / "log")
    made = tree_config(flags("--port", "0"), tmp_path, lambda _: None)
    assert made.log_dir == tmp_path / "log"
    assert {path.name for path in made.log_dir.iterdir()} == {"topics", "topics.json", "offsets.jsonl", "lock"}


@pytest.mark.parametrize("named", [False, True])
def test_forget_removes_the_log_and_nothing_else(tmp_path, named):
    folder = tmp_path / ("mine" if named else "log")
    put_log(folder)
    (folder / "thesis.txt").write_text("x")
    given = ("--data-dir", str(folder)) if named else ()
    assert tree_config(flags("--port", "0", "--forget", *given), tmp_path, lambda _: None).log_dir == folder
    assert {path.name for path in folder.iterdir()} == {"thesis.txt", "lock"}


@pytest.mark.parametrize("forget", [(), ("--forget",)])
@pytest.mark.parametrize("name", ["topics", "groups.json", "offsets.jsonl"])
def test_another_programs_folder_is_refused_and_stays_as_it_is(tmp_path, forget, name):
    (tmp_path / name).mkdir()
    given = ("--port", "0", "--data-dir", str(tmp_path), *forget)
    with pytest.raises(UserError, match=f"has a {name} that is not of a broker's log: name another folder with --data"):
        tree_config(flags(*given), tmp_path / "state", lambda _: None)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_the_ledgers_files_are_in_the_state_folder_wherever_the_log_is(tmp_path):
    state, given = tmp_path / "state", ("--port", "0", "--data-dir", str(tmp_path / "log"))
    made = tree_config(flags(*given, "--ledger"), state, lambda _: None)
    assert (made.log_dir, made.ledger_dir) == (tmp_path / "log", state / "ledger")
    assert tree_config(flags(*given, "--no-ledger"), state, lambda _: None).ledger_dir is None


def test_a_log_that_another_broker_uses_is_neither_used_nor_forgotten(tmp_path):
    put_log(tmp_path / "log")
    with (tmp_path / "log" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for more in ((), ("--forget",)):
            with pytest.raises(UserError, match="is in use by another broker: stop the tree"):
                tree_config(flags("--port", "0", *more), tmp_path, lambda _: None)
    assert (tmp_path / "log" / "topics.json").exists()


def test_a_log_with_other_partitions_is_refused_with_both_remedies(tmp_path, monkeypatch):
    put_log(tmp_path / "log", partitions=8)
    with pytest.raises(UserError, match=r"has 8 partitions, and this tree 4: set RAILBUS_PARTITIONS=8, or .* --forget"):
        tree_config(flags("--port", "0"), tmp_path, lambda _: None)
    monkeypatch.setenv("RAILBUS_PARTITIONS", "8")
    tree_config(flags("--port", "0"), tmp_path, lambda _: None)


@pytest.mark.parametrize("broker", [("--kafka", "127.0.0.1:9092"), ("--kafka-nodes", "3")])
def test_forget_without_the_embedded_broker_is_refused(broker):
    with pytest.raises(UserError, match=f"--forget has no effect with {broker[0]}"):
        check_log_flags(flags("--forget", *broker))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--edges", "0"), "--edges 0: must be between 1 and 16"),
        (("--routers", "17"), "--routers 17: must be between 1 and 16"),
        (("--rails", "2", "--no-governed"), "--rails 2 has no effect with --no-governed"),
        (("--engine", "vllm", "--generators", "2"), "--generators 2: engine vllm takes the whole accelerator"),
        (("--kafka-nodes", "0"), "--kafka-nodes 0: must be between 1 and 5"),
        (("--kafka-nodes", "3", "--kafka", "127.0.0.1:1"), "leave one of the two out"),
    ],
)
def test_a_number_of_processes_that_cannot_be_is_refused(given, said):
    with pytest.raises(UserError, match=said):
        check_counts(flags(*given))


def test_each_process_has_a_port_of_its_own(tmp_path):
    given = (
        "--port",
        "0",
        "--edges",
        "3",
        "--routers",
        "2",
        "--safeties",
        "2",
        "--kafka-nodes",
        "3",
        "--no-redis",
        "--ledger",
    )
    made = tree_config(flags(*given), tmp_path, lambda _: None)
    assert made.health_ports.keys() == {
        "generator", "router", "router-2", "rails", "safety", "safety-2", "ledger", "batch",
    }  # fmt: skip
    assert len(set(made.edge_ports)) == 3
    assert made.broker_port is None
    ports = [int(address.rpartition(":")[2]) for address in made.kafka.split(",")]
    assert ports == list(range(ports[0], ports[0] + 3))


def test_key_and_anchors_are_beside_the_archive_unless_others_are_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("RAILBUS_AUDIT_KEY", "RAILBUS_AUDIT_ANCHORS"):
        monkeypatch.delenv(name, raising=False)
    made = tree_config(flags("--port", "0", "--no-redis", "--archive", "kept"), tmp_path, lambda _: None)
    assert "audit" in made.health_ports
    assert made.archive == {
        "RAILBUS_ARCHIVE": str(tmp_path / "kept"),
        "RAILBUS_AUDIT_KEY": str(tmp_path / "kept-key.pem"),
        "RAILBUS_AUDIT_ANCHORS": str(tmp_path / "kept-anchors.jsonl"),
    }
    own = config.archive_settings("s3://bucket/kept", tmp_path, {"RAILBUS_AUDIT_KEY": "/keys/own.pem"})
    assert own["RAILBUS_ARCHIVE"] == "s3://bucket/kept"
    assert own["RAILBUS_AUDIT_KEY"] == "/keys/own.pem"
    assert own["RAILBUS_AUDIT_ANCHORS"] == str(tmp_path / "archive-anchors.jsonl")
    (audit,) = [spec for spec in process_specs(made) if spec.name == "audit"]
    assert audit.env["RAILBUS_ARCHIVE"] == made.archive["RAILBUS_ARCHIVE"]
    assert not any("RAILBUS_AUDIT_KEY" in spec.env for spec in process_specs(made) if spec.name != "audit")


def test_further_edges_take_the_next_ports_if_they_are_free(tmp_path):
    port = first_of_free_ports(3)
    with socket.socket() as third:
        third.bind(("127.0.0.1", port + 2))
        third.listen()
        made = tree_config(flags("--port", str(port), "--edges", "3"), tmp_path, lambda _: None)
    assert made.edge_ports[:2] == (port, port + 1)
    assert made.edge_ports[2] != port + 2


@pytest.mark.parametrize("distance", [0, 1])
def test_the_broker_and_the_edges_never_share_a_port(tmp_path, monkeypatch, distance):
    port = first_of_free_ports(2)
    monkeypatch.setattr(config, "KAFKA_PORT", port + distance)
    said = []
    made = tree_config(flags("--port", str(port), "--edges", "2"), tmp_path, said.append)
    assert len({made.broker_port, *made.edge_ports, *made.health_ports.values()}) == 3 + len(made.health_ports)
    assert not any("in use" in line for line in said)


def first_of_free_ports(count):
    """Return the first of ``count`` consecutive free ports.

    The ports are below Linux's range for outgoing connections. So no other program's outgoing connection takes a port
    before the test uses it.
    """
    return next(
        port
        for port in random.sample(CANDIDATE_PORTS, len(CANDIDATE_PORTS) - count)
        if all(is_free(port + number) for number in range(count))
    )
