"""Test that every image of `docker-compose.yml` can be built, and that services in these images answer a question.

``make test-images`` runs these tests. They take several minutes and gigabytes of disk space. ``RAILBUS_TEST_VLLM=1``
also builds the image of vLLM, which contains several gigabytes of CUDA. Layers are kept in ``.railbus/images``, so a
second run builds only what has changed.
"""

import hashlib
import json
import os
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.bench.gpu.shapes import make
from tests.support.brokers import Broker
from tests.support.compose_file import container_environment, interpolated, load
from tests.support.images import Container, ImageStore, require_image_tools
from tests.support.otlp_receiver import otlp_receiver
from tests.support.processes import ServiceProcess, free_port
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not os.environ.get("RAILBUS_TEST_IMAGES"), reason="`make test-images` builds the images"),
]

SERVICES = load()["services"]
OWN = {name: service for name, service in SERVICES.items() if "build" in service}
TREE = [name for name in OWN if name != "generator-gpu"]
IMAGES = {OWN[name]["image"]: OWN[name]["build"] for name in TREE}
KEY = "a key of the test"
PATIENCE_S = 240


@pytest.fixture(scope="module")
def store():
    require_image_tools()
    store = ImageStore()
    store.remove_containers()
    return store


@pytest.fixture(scope="module")
def built(store):
    """Return a function that builds each image only once."""
    found = {}

    def build(image, recipe):
        if image not in found:
            found[image] = store.build(image, recipe)
        return found[image]

    return build


@pytest.mark.parametrize("image", IMAGES)
def test_every_step_of_an_image_succeeds(store, built, image):
    configuration = store.configuration(built(image, IMAGES[image]))
    assert configuration["User"] == "10001:10001"
    with store.mounted(f"localhost/{image}") as root:
        assert not list(Path(root, "requirements").glob("*")), "the pins stay in the first stage"
        assert Path(root, "app", "policies", "default", "policy.toml").is_file()
        assert Path(root, "app", "services", "edge", "static", "index.html").is_file()


@pytest.fixture(scope="module")
def tree(store, built, tmp_path_factory):
    """Start the services of `docker-compose.yml` in their images, with a broker on this machine.

    Wait until each service is healthy by its health check in `docker-compose.yml`. Yield the containers by name, the
    edge's URL and the receiver of traces. The service that needs a GPU is left out.
    """
    folder = tmp_path_factory.mktemp("images")
    keys = folder / "api-keys.toml"
    keys.write_text(f'[keys]\n{hashlib.sha256(KEY.encode()).hexdigest()} = "acme"\n', encoding="utf-8")
    keys.chmod(0o644)
    edge_port = free_port()
    with ExitStack() as stack:
        broker = Broker("embedded", folder / "log", in_memory=True)
        broker.start()
        stack.callback(broker.stop)
        emulator = ServiceProcess("services.devtools.vertex", "--port", str(free_port()))
        stack.callback(emulator.kill)
        cloud = wait_for_address(emulator)
        receiver = stack.enter_context(otlp_receiver())
        of_this_machine = {
            "RAILBUS_KAFKA_BOOTSTRAP": broker.address, "RAILBUS_REDIS_URL": "", "RAILBUS_EDGE_PORT": str(edge_port),
            "RAILBUS_VERTEX_URL": cloud, "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url, "RAILBUS_OPA_URL": "",
        }  # fmt: skip
        containers = {}
        for name in TREE:
            service = OWN[name]
            health = str(free_port())
            root = stack.enter_context(store.mounted(built(service["image"], service["build"])))
            env = container_environment(service, {"RAILBUS_FALLBACK": "vertex"})
            env |= {key: value for key, value in of_this_machine.items() if key in env or key == "RAILBUS_VERTEX_URL"}
            env["RAILBUS_HEALTH_PORT"] = health
            mounts = volumes(service, root, folder / name)
            if "api-keys" in service.get("secrets", []):
                mounts.append((keys, "/run/secrets/api-keys"))
            container = Container(root, store.configuration(f"localhost/{service['image']}"), service, env, mounts)
            container.start()
            stack.callback(container.kill)
            containers[name] = (container, check(service, {"9100": health, "8080": str(edge_port)}))
        for name, (container, command) in containers.items():
            wait_until_healthy(name, container, command)
        yield (
            {name: container for name, (container, _) in containers.items()},
            f"http://127.0.0.1:{edge_port}",
            receiver,
        )


def wait_for_address(process):
    found = []

    def told():
        found[:] = [line for line in process.stdout.splitlines() if line.startswith("ready http")]
        return bool(found)

    wait_until(told, "the emulator serves")
    return found[0].removeprefix("ready ")


def volumes(service, root, folder):
    """Create a folder for each named volume, and return pairs of the folder and its path in the container.

    As with Docker, the folder gets the owner and the mode which that path has in the image.
    """
    found = []
    for volume in service.get("volumes", []):
        _, inside = volume.split(":")
        theirs, ours = Path(str(root) + inside).stat(), folder / inside.strip("/")
        ours.mkdir(parents=True)
        os.chown(ours, theirs.st_uid, theirs.st_gid)
        ours.chmod(theirs.st_mode & 0o7777)
        found.append((ours, inside))
    for parent in (folder, folder.parent):
        if parent.exists():
            parent.chmod(0o755)
    return found


def check(service, ports):
    """Return the command of the service's health check in `docker-compose.yml`, with the ports of this run."""
    kind, *command = interpolated(service["healthcheck"]["test"], {})
    assert kind == "CMD"
    for theirs, ours in ports.items():
        command = [part.replace(f":{theirs}/", f":{ours}/") for part in command]
    return command


def wait_until_healthy(name, container, command):
    deadline = time.monotonic() + PATIENCE_S
    while (done := container.run(*command)).returncode:
        assert container.status is None, f"{name} ended with {container.status}: {container.said()}"
        assert time.monotonic() < deadline, f"{name} is not healthy: {done.stderr}\n{container.said()}"
        time.sleep(0.5)


def ask(url, prompt):
    body = {"messages": [{"role": "user", "content": prompt}], "max_tokens": 12, "model": "default"}
    body["railbus"] = {"deadlines": {"ttft_ms": 20_000, "stall_ms": 20_000}}
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(),
        {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"},
    )  # fmt: skip
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
        return json.load(response)


def test_the_services_answer_a_governed_question_from_their_images(tree):
    containers, url, receiver = tree
    (said,) = ask(url, "Name a river.")["choices"]
    assert said["message"]["content"].strip()
    assert said["finish_reason"] != "content_filter"
    (denied,) = ask(url, "why does AKIAIOSFODNN7EXAMPLE fail?")["choices"]
    assert denied["finish_reason"] == "content_filter"
    assert "password or key" in denied["message"]["content"]
    wait_until(lambda: bool(receiver.spans), "the tracer sends the trace", PATIENCE_S)
    for name, container in containers.items():
        assert container.status is None, f"{name}: {container.said()}"


def test_a_service_cannot_write_to_its_image_and_is_not_root(tree):
    containers, *_ = tree
    program = (
        "import os, pathlib\n"
        "assert os.getuid() == os.getgid() == 10001 and not os.getgroups()\n"
        "pathlib.Path('/tmp/scratch').write_text('x')\n"
        "try: pathlib.Path('/app/x').write_text('x')\n"
        "except OSError as error: print(error.strerror)\n"
    )
    for container in containers.values():
        done = container.run("python", "-c", program)
        assert (done.returncode, done.stdout) == (0, "Read-only file system\n"), done.stderr


def test_the_image_alone_says_that_a_service_must_be_named(store, tree):
    containers, *_ = tree
    command = store.configuration(f"localhost/{OWN['router']['image']}")["Cmd"]
    done = containers["router"].run(*command)
    assert done.returncode == 1
    assert "python -m services.NAME" in done.stderr


@pytest.mark.parametrize("name", TREE)
def test_a_service_stops_when_it_is_told_to(tree, name):
    """A service that is told to stop ends with status 0. This test must run after all others that use ``tree``."""
    containers, *_ = tree
    assert containers[name].stop() == 0, containers[name].said()


@pytest.mark.skipif(not os.environ.get("RAILBUS_TEST_VLLM"), reason="RAILBUS_TEST_VLLM=1 builds vLLM's image, 10 GB")
def test_the_image_with_vllm_is_built_and_says_that_there_is_no_gpu(store, built, tmp_path, request):
    service = OWN["generator-gpu"]
    image = built(service["image"], service["build"])
    model = make(tmp_path, "tiny")
    tmp_path.chmod(0o755)
    env = container_environment(service, {}) | {
        "RAILBUS_MODEL_PATH": "/models", "RAILBUS_VLLM_LOAD_FORMAT": "dummy", "RAILBUS_KAFKA_BOOTSTRAP": "127.0.0.1:1",
    }  # fmt: skip
    (cache := tmp_path / "cache").mkdir()
    os.chown(cache, 10001, 10001)
    with store.mounted(image) as root:
        container = Container(root, store.configuration(image), service, env, [(model, "/models"), (cache, "/cache")])
        request.addfinalizer(container.kill)
        done = container.run("sh", "-c", "gcc --version && python -c 'import torch, vllm; print(vllm.__version__)'")
        assert done.returncode == 0, done.stderr
        done = container.run(*service["command"])
        assert done.returncode == 2, done.stderr
        assert "no GPU" in done.stderr
