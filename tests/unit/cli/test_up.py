import asyncio
import errno
import io
import re
import signal
import sys
from dataclasses import replace

import pytest

from services.bus import BusSettings
from services.cli import common
from services.cli.__main__ import _parser, main
from services.cli.client import edge_client
from services.cli.commands import up
from services.cli.tree.process_specs import ProcessSpec, TreeConfig
from services.cli.tree.supervisor import Supervisor
from services.runtime import UserError
from tests.support.waiting import until


def make_config(tmp_path, engine, **options):
    return TreeConfig(
        engine=engine, edge_port=1, kafka="k", broker_port=None, log_dir=tmp_path, redis_port=None, redis_program=None,
        redis_url=None, health_ports={}, options=options,
    )  # fmt: skip


def test_one_line_describes_the_model(tmp_path, monkeypatch):
    monkeypatch.delenv("RAILBUS_MODEL_PATH", raising=False)
    assert "SmolLM2-135M, a very small one" in up.describe_model(make_config(tmp_path, "llama"))
    assert up.describe_model(make_config(tmp_path, "llama", RAILBUS_MODEL_PATH="m.gguf")) == "model: m.gguf"
    assert "none" in up.describe_model(make_config(tmp_path, "simulated"))


def test_edges_with_a_certificate_speak_https(tmp_path):
    config = make_config(tmp_path, "simulated")
    assert up.edge_urls(config, {}) == up.edge_urls(config, {"RAILBUS_EDGE_TLS_CERT": ""}) == ["http://127.0.0.1:1"]
    assert up.edge_urls(config, {"RAILBUS_EDGE_TLS_CERT": "c.pem"}) == ["https://127.0.0.1:1"]


def test_the_password_of_redis_is_not_printed(tmp_path):
    config = replace(
        make_config(tmp_path, "simulated"), redis_url="redis://railbus:secret@10.0.0.1:6379/0?password=secret"
    )
    assert list(up._describe_tree(config, ["u"])) == ["engine simulated, broker k, Redis redis://10.0.0.1:6379/0"]


async def test_the_password_of_the_model_server_is_not_printed(monkeypatch, capsys):
    monkeypatch.setattr(up, "UPSTREAM_TIMEOUT_S", 0.05)
    with pytest.raises(UserError, match=r"^no model server at http://127\.0\.0\.1:9 "):
        await up._check_upstream("http://railbus:secret@127.0.0.1:9")
    assert "secret" not in capsys.readouterr().err


async def test_a_full_disk_under_the_output_neither_stops_nor_blocks(monkeypatch):
    class Output(io.StringIO):
        full = True

        def write(self, text):
            if self.full:
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().write(text)

    output = Output()
    monkeypatch.setattr(up.sys, "stderr", output)
    code = "import sys; print('ready', flush=True)\nwhile True: sys.stderr.write('x' * 1000 + '\\n')"
    spec = ProcessSpec(name="talker", stage=0, command=(sys.executable, "-c", code), env={})
    async with Supervisor([spec], up.StatusLines().say).running():
        await asyncio.sleep(0.1)
        output.full = False
        await until(lambda: "talker | x" in output.getvalue())


def test_the_next_steps_name_the_page_the_command_and_the_end():
    text = up.next_steps("http://127.0.0.1:8080", "railbus")
    assert "open http://127.0.0.1:8080" in text
    assert "railbus ask " in text
    assert "Ctrl-C" in text


def test_once_is_not_a_success_if_it_is_stopped_before_the_answer(tmp_path, monkeypatch):
    async def stopped(*_):
        signal.raise_signal(signal.SIGTERM)
        await asyncio.sleep(60)

    monkeypatch.setattr(up, "_serve", stopped)
    monkeypatch.setenv("RAILBUS_STATE_DIR", str(tmp_path))
    command = ["up", "--engine", "simulated", "--no-governed", "--no-ledger"]
    assert main(command) == 0
    assert main([*command, "--once"]) == 130


def test_a_reader_of_the_output_that_ends_is_no_crash(tmp_path, monkeypatch, capfd):
    async def unread(*_):
        raise BrokenPipeError

    monkeypatch.setattr(up, "_serve", unread)
    monkeypatch.setenv("RAILBUS_STATE_DIR", str(tmp_path))
    args = _parser(["up"]).parse_args(["up", "--engine", "simulated", "--no-governed", "--no-ledger"])
    with pytest.raises(BrokenPipeError):  # the program turns it into exit code 0
        up.run(args)
    assert capfd.readouterr().err == ""


async def test_the_question_at_the_start_is_asked_with_the_key(monkeypatch):
    asked = []

    async def ask_edge(_, edge, __):
        asked.append(edge)

    monkeypatch.setattr(edge_client, "ask_edge", ask_edge)
    monkeypatch.setenv("RAILBUS_API_KEY", "s3cret")
    await up._ask("http://127.0.0.1:1", "hi")
    assert asked == [edge_client.EdgeAddress("http://127.0.0.1:1", "s3cret")]


async def test_a_model_server_that_is_not_there_is_waited_for_within_a_bound(monkeypatch, capsys):
    monkeypatch.setattr(up, "UPSTREAM_TIMEOUT_S", 0.3)
    with pytest.raises(UserError, match=r"^no model server at http://127.0.0.1:9 \(.+\): start it, or correct"):
        await up._check_upstream("http://127.0.0.1:9")
    assert re.search("waiting up to 0 s for the model server", capsys.readouterr().err)


async def test_a_model_server_that_starts_late_is_found(monkeypatch):
    monkeypatch.setattr(up, "UPSTREAM_RETRY_S", 0.05)
    checking = asyncio.create_task(up._check_upstream("http://127.0.0.1:18471/v1"))
    await asyncio.sleep(0.1)
    async with await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 18471):
        await checking


async def test_a_broker_that_does_not_answer_is_waited_for_within_a_bound(monkeypatch):
    monkeypatch.setattr(common, "CONNECT_TIMEOUT_S", 0.3)
    with pytest.raises(UserError, match=r"^the broker at 127.0.0.1:9 does not answer: start it, correct --kafka"):
        await up._check_broker("127.0.0.1:9")


async def test_the_settings_of_a_broker_are_checked_first():
    with pytest.raises(UserError, match=r"^--kafka 'nowhere': must be HOST:PORT"):
        await up._check_broker("nowhere")


def test_reaching_a_broker_names_the_address():
    async def reach():
        async with common.reaching_broker(BusSettings(bootstrap="b:1")):
            raise TimeoutError

    with pytest.raises(UserError, match="the broker at b:1 does not answer: start it, or name another with --kafka"):
        asyncio.run(reach())


async def test_without_java_nodes_of_kafka_are_refused_in_one_line(monkeypatch, tmp_path):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(UserError, match=r"^--kafka-nodes: no Java found: install .*; or leave it out: the embedded"):
        await up._bring_kafka()


async def test_only_a_checkout_can_start_nodes_of_kafka(monkeypatch, tmp_path):
    monkeypatch.setattr(up, "KAFKA_RUNNER", tmp_path / "run.py")
    with pytest.raises(UserError, match=r"^--kafka-nodes needs a checkout"):
        await up._bring_kafka()


async def test_the_scheme_of_a_model_server_is_left_to_the_generator(capsys):
    await up._check_upstream("gopher://127.0.0.1:9")
    assert capsys.readouterr().err == "", "no wait for a server that could not be used"


def test_lines_that_come_during_an_answer_follow_it(capsys):
    status = up.StatusLines()
    status.say("before")
    with status.hold():
        status.say("batch ready")
        assert capsys.readouterr().err == "before\n"
    assert capsys.readouterr().err == "batch ready\n"
    status.say("after")
    assert capsys.readouterr().err == "after\n"
