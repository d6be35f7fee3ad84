"""Test that ``railbus up`` can run several processes of each service, and that every edge answers."""

import json
import os
import shutil
import urllib.request

import pytest

from tests.support.tree import running_tree
from tests.support.waiting import wait_until

ENGINE = ("--engine", "simulated", "--no-redis")
TWO = ("--edges", "2", "--routers", "2", "--generators", "2")


def ask(url):
    body = {"model": "simulated-n8", "messages": [{"role": "user", "content": "Hello?"}], "max_tokens": 8}
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)["choices"][0]["message"]["content"]


def check(tree):
    names = {"edge", "edge-2", "router", "router-2", "generator", "generator-2"}
    assert names <= tree.state["pids"].keys()
    assert tree.state["edges"][0] == tree.url
    assert len(set(tree.state["edges"])) == 2
    wait_until(lambda: tree.said("edges " + " ".join(tree.state["edges"])), "the edges are printed")
    for url in tree.state["edges"]:
        assert ask(url).split()


@pytest.mark.slow
def test_two_of_a_service_answer(tmp_path):
    with running_tree(tmp_path, *ENGINE, *TWO, start_s=240) as tree:
        check(tree)
        tree.kill("edge-2")
        wait_until(lambda: _answers(tree.state["edges"][1]), "the second edge serves again", 90)


@pytest.mark.slow
@pytest.mark.kafka
@pytest.mark.skipif(
    os.environ.get("RAILBUS_REQUIRE_KAFKA") != "1" and not (shutil.which("java") and shutil.which("mvn")),
    reason="Apache Kafka needs Java and Maven",
)
def test_two_of_a_service_answer_on_three_nodes_of_kafka(tmp_path):
    with running_tree(tmp_path, *ENGINE, *TWO, "--kafka-nodes", "3", start_s=240) as tree:
        assert len(tree.kafka.split(",")) == 3
        check(tree)
        node = int((tmp_path / ".railbus" / "kafka" / "node-2" / "pid").read_text())
        os.kill(node, 9)
        for url in tree.state["edges"]:
            assert ask(url).split()
        wait_until(lambda: tree.said("node 2 is started again"), "the killed node is started again")


def _answers(url):
    try:
        return ask(url)
    except OSError:
        return False
