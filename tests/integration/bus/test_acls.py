"""Test the script that ``railbus acls`` prints, on an Apache Kafka that authenticates users and enforces ACLs."""

import asyncio
import os
import runpy
import subprocess
import sys
from contextlib import AsyncExitStack

import aiohttp
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import GroupAuthorizationFailedError, TopicAuthorizationFailedError

from schemas.registry import GROUPS, ROLES, reads, writes
from schemas.topics import DEAD, TOPICS
from services.bus import BusSettings, Producer
from services.edge.ledger.report import Query
from services.edge.ledger.window_reader import WindowReader
from services.runtime.errors import UserError
from tests.contract.conftest import running_broker
from tests.integration.rails.lab import copy_patient_policy
from tests.support.brokers import Broker
from tests.support.processes import ROOT, ServiceProcess, bare_environment, free_port
from tests.support.waiting import until

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

PATIENCE_S = 60
PARTITIONS = 2
UNUSED = TopicPartition(DEAD.name, 0)
SETTINGS = """
listeners=PLAINTEXT://127.0.0.1:${{port}},CONTROLLER://127.0.0.1:${{controller_port}},USERS://127.0.0.1:{port}
advertised.listeners=PLAINTEXT://127.0.0.1:${{port}},USERS://127.0.0.1:{port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,USERS:SASL_PLAINTEXT
listener.name.users.sasl.enabled.mechanisms=PLAIN
listener.name.users.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required {users};
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS;User:admin
"""
# Settings of a user who may change access control lists.
ADMIN = """
security.protocol=SASL_PLAINTEXT
sasl.mechanism=PLAIN
sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \\
  username="admin" password="admin-secret";
"""
# Starts the same program as Apache Kafka's own kafka-acls.sh, in a smaller JVM. The script calls it some fifty times.
# The first call stores its loaded classes in an archive, which almost halves the start time of the other calls.
TOOL = """#!/bin/sh
archive=-XX:SharedArchiveFile={folder}/classes.jsa
test -e {folder}/classes.jsa || archive=-XX:ArchiveClassesAtExit={folder}/classes.jsa
exec {java} -Xmx96m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 $archive -Xlog:cds=off -Xlog:cds+dynamic=off \\
  -Dlog4j2.configurationFile={logging} -cp '{lib}/*' org.apache.kafka.tools.AclCommand "$@"
"""
SCRIPT_LIMIT_S = 400


def as_user(name):
    """Return the options with which a client of aiokafka authenticates as this user."""
    return {
        "security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN",
        "sasl_plain_username": name, "sasl_plain_password": f"{name}-secret",
    }  # fmt: skip


def environment(address, role):
    return {
        "RAILBUS_KAFKA_BOOTSTRAP": address, "RAILBUS_KAFKA_SECURITY_PROTOCOL": "SASL_PLAINTEXT",
        "RAILBUS_KAFKA_SASL_MECHANISM": "PLAIN", "RAILBUS_KAFKA_SASL_USERNAME": f"railbus-{role}",
        "RAILBUS_KAFKA_SASL_PASSWORD": f"railbus-{role}-secret", "RAILBUS_PARTITIONS": str(PARTITIONS),
    }  # fmt: skip


def railbus(*arguments, **env):
    done = subprocess.run(
        [sys.executable, "-m", "services.cli", *arguments],
        env=bare_environment(**env), capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def run_script(script, folder):
    """Run ``script``, the output of ``railbus acls``, as an operator would: in a shell with kafka-acls.sh in PATH."""
    jars = runpy.run_path(str(ROOT / "infra" / "kafka" / "jars.py"))
    (folder / "admin.properties").write_text(ADMIN)
    tool = folder / "kafka-acls.sh"
    logging = ROOT / "infra" / "kafka" / "log4j2.properties"
    tool.write_text(TOOL.format(java=jars["find_java"](), logging=logging, lib=jars["fetch"](), folder=folder))
    tool.chmod(0o755)
    (folder / "acls.sh").write_text(script)
    return subprocess.run(
        ["sh", "acls.sh"], cwd=folder, env={"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True, text=True, timeout=SCRIPT_LIMIT_S, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """Start a Kafka with the ACLs that ``railbus acls`` prints, and create the topics as the operator.

    Yield the address of the listener that authenticates users.
    """
    folder = tmp_path_factory.mktemp("guarded")
    names = ["admin", "stranger", *(f"railbus-{role}" for role in ROLES)]
    port = free_port()
    settings = folder / "more.properties"
    settings.write_text(SETTINGS.format(port=port, users=" ".join(f'user_{name}="{name}-secret"' for name in names)))
    address = f"127.0.0.1:{port}"
    for _ in running_broker(Broker("kafka", folder / "data", options=("--settings", str(settings)))):
        script = railbus("acls", "--kafka", address)
        done = run_script(script, folder)
        assert (done.returncode, done.stderr) == (0, ""), done.stdout[-2000:]
        assert done.stdout.count("Adding ACLs for resource") >= len(script.splitlines()) - 1
        railbus("topics", "--create", **environment(address, "operator"))
        yield address


@pytest.mark.parametrize("role", ROLES)
async def test_a_role_can_write_read_and_join_what_it_needs_and_nothing_else(guarded, role):
    user = f"railbus-{role}"
    async with asyncio.timeout(PATIENCE_S * 2):
        assert await writable(guarded, user) == set(writes(role))
        assert await readable(guarded, user) == set(reads(role))
        everyones = {group for names in GROUPS.values() for group in names}
        assert {group for group in everyones if await joins(guarded, user, group)} == set(GROUPS[role])


async def test_a_user_whom_no_list_names_sees_joins_and_writes_nothing(guarded):
    consumer = AIOKafkaConsumer(bootstrap_servers=guarded, **as_user("stranger"))
    await consumer.start()
    try:
        assert await consumer.topics() == set()
    finally:
        await consumer.stop()
    assert not await joins(guarded, "stranger", "generator")
    bus = BusSettings(
        bootstrap=guarded, security_protocol="SASL_PLAINTEXT", sasl_username="stranger",
        sasl_password="stranger-secret",
    )  # fmt: skip
    with pytest.raises(UserError, match="does not let this user write"):
        await Producer(bus, role="rails").start()


@pytest.mark.parametrize(("role", "state"), [("edge", b"live"), ("rails", b"refused")])
async def test_the_ledgers_page_without_the_right_to_its_topic_says_so(guarded, role, state):
    """The report for the page at ``/ledger`` says whether the ACLs let the edge read ``railbus.ledger``.

    ``WindowReader.run`` keeps running even without the right to read this topic. An edge lacks the right if its ACLs
    were created for an earlier version of Railbus. The test simulates such an edge with the Kafka user of the service
    ``rails``, which lacks the right too.
    """
    bus = BusSettings(
        bootstrap=guarded, security_protocol="SASL_PLAINTEXT", sasl_username=f"railbus-{role}",
        sasl_password=f"railbus-{role}-secret", partitions=PARTITIONS,
    )  # fmt: skip
    reader = WindowReader(bus)
    running = asyncio.create_task(reader.run())
    try:
        await until(lambda: page_says(reader, b'"state":"%b"' % state), within_s=PATIENCE_S, every_s=0.1)
        assert not running.done()
    finally:
        running.cancel()


async def page_says(reader, text):
    return text in await reader.report(None, Query())


async def writable(address, user):
    found = set()
    producer = AIOKafkaProducer(bootstrap_servers=address, request_timeout_ms=PATIENCE_S * 1_000, **as_user(user))
    await producer.start()
    try:
        for topic in TOPICS:
            try:
                await producer.send_and_wait(topic.name, b"{}", partition=0)
            except TopicAuthorizationFailedError:
                continue
            found.add(topic.name)
    finally:
        await producer.stop()
    return found


async def readable(address, user):
    found = set()
    async with AIOKafkaProducer(bootstrap_servers=address, **as_user("admin")) as admin:
        for topic in TOPICS:
            await admin.send_and_wait(topic.name, b"{}", partition=0)
    for topic in TOPICS:
        consumer = AIOKafkaConsumer(bootstrap_servers=address, auto_offset_reset="earliest", **as_user(user))
        await consumer.start()
        try:
            consumer.assign([TopicPartition(topic.name, 0)])
            await asyncio.wait_for(consumer.getone(), PATIENCE_S)
        except TopicAuthorizationFailedError:
            continue
        else:
            found.add(topic.name)
        finally:
            await consumer.stop()
    return found


async def joins(address, user, group):
    """Return whether a user may join a group.

    The function tries to commit an offset of the group, because Kafka requires the same right for this as for joining.
    It uses the topic ``railbus.dead``, because no service needs a committed offset of that topic.
    """
    consumer = AIOKafkaConsumer(bootstrap_servers=address, group_id=group, enable_auto_commit=False, **as_user(user))
    try:
        await consumer.start()
        consumer.assign([UNUSED])
        await asyncio.wait_for(consumer.commit({UNUSED: 0}), PATIENCE_S)
    except GroupAuthorizationFailedError:
        return False
    except TopicAuthorizationFailedError:
        return True  # the user has the right to the group, and other tests check the topic
    finally:
        await consumer.stop()
    return True


async def test_a_tree_in_which_each_service_has_only_its_own_rights_answers(guarded, tmp_path):
    """Services answer a request if each of them has its own Kafka user, with only the rights of its role.

    A service that lacks a right would not become ready, or would write an authorization error to stderr.
    """
    policy = copy_patient_policy(tmp_path)
    url = f"http://127.0.0.1:{(port := free_port())}"
    async with AsyncExitStack() as stack:
        processes = {}
        for role in ("router", "safety", "rails", "generator", "edge"):
            process = ServiceProcess(
                f"services.{role}", **environment(guarded, role), RAILBUS_ENGINE="simulated",
                RAILBUS_SIM_TIME_SCALE="0.2", RAILBUS_EDGE_PORT=str(port), RAILBUS_HEALTH_PORT="0",
                RAILBUS_POLICY=str(policy),
            )  # fmt: skip
            stack.callback(process.kill)
            processes[role] = process
        await asyncio.gather(*(process.ready(PATIENCE_S * 2) for process in processes.values()))
        http = await stack.enter_async_context(aiohttp.ClientSession())
        body = {"model": "simulated-n20", "messages": [{"role": "user", "content": "Tell me about rivers."}]}
        async with http.post(f"{url}/v1/chat/completions", json=body) as response:
            said = await response.json()
            assert response.status == 200, said
        assert said["choices"][0]["message"]["content"]
        for role, process in processes.items():
            assert "uthoriz" not in process.stderr, (role, process.stderr)
