import sys
from dataclasses import fields
from pathlib import Path

from services.cli.tree.process_specs import TreeConfig, process_specs
from services.generator.engines.vllm.engine import FIRST_TOKEN_TIMEOUT_S
from services.generator.engines.vllm.settings import VllmSettings


def plan(**changes):
    made = {
        "engine": "simulated", "edge_port": 8080, "kafka": "127.0.0.1:9092", "broker_port": 9092,
        "log_dir": Path("log"), "redis_port": 6379, "redis_program": Path("valkey-server"),
        "redis_url": "redis://127.0.0.1:6379/0", "health_ports": {"generator": 1, "router": 2},
    }  # fmt: skip
    return TreeConfig(**made | changes)


def test_the_log_starts_first_and_the_edge_last():
    stages = {launch.name: launch.stage for launch in process_specs(plan())}
    assert stages == {"broker": 0, "redis": 0, "generator": 1, "router": 1, "edge": 2}
    assert [launch.stage for launch in process_specs(plan())] == sorted(stages.values())


def test_each_service_is_told_where_the_others_are():
    by_name = {launch.name: launch for launch in process_specs(plan(options={"RAILBUS_MODEL": "m"}))}
    for name, port in (("generator", "1"), ("router", "2"), ("edge", "0")):
        launch = by_name[name]
        assert launch.command[1:] == ("-P", "-m", f"services.{name}")
        assert launch.env["RAILBUS_KAFKA_BOOTSTRAP"] == "127.0.0.1:9092"
        assert launch.env["RAILBUS_REDIS_URL"] == "redis://127.0.0.1:6379/0"
        assert launch.env["RAILBUS_ENGINE"] == "simulated"
        assert launch.env["RAILBUS_EDGE_PORT"] == "8080"
        assert launch.env["RAILBUS_HEALTH_PORT"] == port
        assert launch.env["RAILBUS_MODEL"] == "m"


def test_servers_of_somebody_else_are_not_started():
    names = [launch.name for launch in process_specs(plan(broker_port=None, redis_port=None, redis_url=None))]
    assert names == ["generator", "router", "edge"]
    assert process_specs(plan(redis_port=None, redis_url=None))[-1].env["RAILBUS_REDIS_URL"] == ""


def test_everything_listens_on_loopback():
    by_name = {launch.name: launch for launch in process_specs(plan())}
    assert "127.0.0.1" in by_name["broker"].command
    assert by_name["redis"].command[by_name["redis"].command.index("--bind") + 1] == "127.0.0.1"
    assert by_name["edge"].env["RAILBUS_EDGE_HOST"] == "127.0.0.1"


def test_redis_evicts_no_idempotency_key_of_the_edges():
    command = next(launch.command for launch in process_specs(plan()) if launch.name == "redis")
    assert command[command.index("--maxmemory-policy") + 1] == "noeviction"
    assert "--maxmemory" in command


def test_governed_it_starts_rails_and_safety_and_everybody_waits_for_them():
    plain = {launch.name: launch.env for launch in process_specs(plan())}
    governed = {launch.name: launch.env for launch in process_specs(plan(governed=True))}
    assert governed.keys() - plain.keys() == {"rails", "safety"}
    told = {"RAILBUS_INPUT_GATE": "hold", "RAILBUS_OUTPUT_CHECK": "on"}
    for name in ("generator", "router", "rails", "safety", "edge"):
        assert told.items() <= governed[name].items()
    off = {"RAILBUS_INPUT_GATE": "off", "RAILBUS_OUTPUT_CHECK": "off"}
    for name in ("generator", "router", "edge"):
        assert off.items() <= plain[name].items()  # the services' own default is to wait


def test_a_tracer_runs_only_where_a_collector_is_named():
    plain, traced = process_specs(plan()), process_specs(plan(traced=True))
    (tracer,) = [launch for launch in traced if launch.name == "tracer"]
    assert [launch for launch in traced if launch is not tracer] == [*traced[:4], traced[-1]]
    assert len(traced) == len(plain) + 1
    assert tracer.nice > max(launch.nice for launch in plain)


def test_who_is_in_the_way_of_the_first_token_goes_before_who_is_not():
    nice = {
        launch.name: launch.nice for launch in process_specs(plan(governed=True, cloud="emulator", emulator_port=7001))
    }
    assert {name for name, value in nice.items() if value} == {"router", "safety"}


def test_an_emulated_cloud_is_a_server_and_everybody_is_told():
    made = {launch.name: launch for launch in process_specs(plan(cloud="emulator", emulator_port=7001))}
    assert made["vertex-emulator"].stage == 0
    assert made["vertex-emulator"].command[1:] == ("-P", "-m", "services.devtools.vertex", "--port", "7001")
    for name in ("generator", "router", "vertex", "edge"):
        assert made[name].env["RAILBUS_FALLBACK"] == "vertex"
    assert made["vertex"].env["RAILBUS_VERTEX_URL"] == "http://127.0.0.1:7001"
    assert made["vertex"].env["RAILBUS_VERTEX_MODEL"] == "emulated"
    assert "emulator" in made["edge"].env["RAILBUS_EDGE_NOTICE"]


def test_the_real_cloud_is_emulated_by_nobody():
    made = {launch.name: launch.env for launch in process_specs(plan(cloud="vertex"))}
    assert made.keys() == {"broker", "redis", "generator", "router", "vertex", "edge"}
    assert made["router"]["RAILBUS_FALLBACK"] == "vertex"
    assert not {"RAILBUS_VERTEX_URL", "RAILBUS_VERTEX_MODEL", "RAILBUS_EDGE_NOTICE"} & made["vertex"].keys()


def test_without_a_cloud_nobody_falls_back():
    made = {launch.name: launch.env for launch in process_specs(plan())}
    assert "vertex" not in made
    assert made["router"]["RAILBUS_FALLBACK"] == "off", "it must not follow the environment: no worker would answer"


def test_vllm_may_have_its_own_environment_and_a_long_load_time():
    made = {
        launch.name: launch for launch in process_specs(plan(engine="vllm", generator_python="/opt/vllm/bin/python"))
    }
    assert made["generator"].command == ("/opt/vllm/bin/python", "-P", "-m", "services.generator")
    assert made["router"].command[0] == sys.executable
    assert made["generator"].ready_s > 600 > made["router"].ready_s


def test_several_of_a_service_have_names_and_ports_of_their_own():
    counts = {"edge": 3, "router": 2, "safety": 2, "rails": 1, "generator": 2}
    health = {name: number for number, name in enumerate(("router", "router-2", "generator-2"), 1)}
    specs = process_specs(plan(counts=counts, more_edge_ports=(8081, 9), governed=True, health_ports=health))
    made = {spec.name: spec for spec in specs}
    assert len(made) == len(specs)
    assert [name for name in made if name not in {"broker", "redis"}] == [
        "generator", "generator-2", "router", "router-2", "rails", "safety", "safety-2", "edge", "edge-2", "edge-3",
    ]  # fmt: skip
    assert [made[name].env["RAILBUS_EDGE_PORT"] for name in ("edge", "edge-2", "edge-3")] == ["8080", "8081", "9"]
    assert made["router-2"].command[-1] == "services.router"
    assert made["router-2"].env["RAILBUS_ROUTER_INSTANCE"] == "router-2"
    assert made["router-2"].env["RAILBUS_HEALTH_PORT"] == "2"
    assert made["router-2"].nice == made["router"].nice


def test_nodes_of_apache_kafka_start_first():
    addresses = "127.0.0.1:30000,127.0.0.1:30001,127.0.0.1:30002"
    first, *others = process_specs(plan(broker_port=None, kafka=addresses, kafka_nodes=3))
    assert (first.name, first.stage) == ("kafka", 0)
    assert first.command[2:] == ("--port", "30000", "--data-dir", "log", "--nodes", "3", "--restart")
    assert {spec.env["RAILBUS_KAFKA_BOOTSTRAP"] for spec in others if spec.stage} == {addresses}


def test_the_ledger_stands_in_nobodys_way():
    assert "ledger" not in {launch.name for launch in process_specs(plan())}
    *others, ledger = process_specs(plan(ledger_dir=Path("kept"), health_ports={"ledger": 7}))
    assert (ledger.name, ledger.nice, ledger.awaited, ledger.env["RAILBUS_HEALTH_PORT"]) == ("ledger", 19, False, "7")
    assert ledger.env["RAILBUS_LEDGER_DATA_DIR"] == "kept"
    assert all(launch.awaited for launch in others)


def test_no_generator_is_stopped_while_it_may_still_load_its_model():
    most = {field.name: field.metadata.get("le") for field in fields(VllmSettings)}["vllm_start_timeout_s"]
    made = {engine: {spec.name: spec for spec in process_specs(plan(engine=engine))} for engine in ("vllm", "llama")}
    assert made["vllm"]["generator"].ready_s > most + FIRST_TOKEN_TIMEOUT_S
    assert made["llama"]["generator"].ready_s > 600 > made["llama"]["router"].ready_s
