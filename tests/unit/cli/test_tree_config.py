import errno
import socket
from pathlib import Path

import pytest

from services.cli.__main__ import _parser
from services.cli.tree import config
from services.cli.tree.config import check_counts, check_engine_flags, tree_config
from services.runtime import UserError


def flags(*given):
    return _parser(["up"]).parse_args(["up", *given])


@pytest.fixture
def occupied(monkeypatch):
    """Make the usual ports of edge and broker taken ones."""
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


def test_the_log_folder_begins_empty_and_keeps_no_probe(tmp_path):
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "old").write_text("x")
    made = tree_config(flags("--port", "0"), tmp_path, lambda _: None)
    assert list(made.log_dir.iterdir()) == []


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
    given = ("--port", "0", "--edges", "3", "--routers", "2", "--safeties", "2", "--kafka-nodes", "3", "--no-redis")
    made = tree_config(flags(*given), tmp_path, lambda _: None)
    assert made.health_ports.keys() == {"generator", "router", "router-2", "rails", "safety", "safety-2"}
    assert len(set(made.edge_ports)) == 3
    assert made.broker_port is None
    ports = [int(address.rpartition(":")[2]) for address in made.kafka.split(",")]
    assert ports == list(range(ports[0], ports[0] + 3))


def test_further_edges_take_the_ports_after_the_first_ones_where_they_are_free(tmp_path):
    with socket.socket() as first, socket.socket() as third:
        first.bind(("127.0.0.1", 0))
        port = first.getsockname()[1]
        third.bind(("127.0.0.1", port + 2))
        third.listen()
        first.close()
        made = tree_config(flags("--port", str(port), "--edges", "3"), tmp_path, lambda _: None)
    assert made.edge_ports[:2] == (port, port + 1)
    assert made.edge_ports[2] != port + 2
