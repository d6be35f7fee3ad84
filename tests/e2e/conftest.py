import asyncio
import threading
from contextlib import contextmanager

import pytest

from tests.e2e.patience import PATIENT_ROUTER, patient_policy
from tests.support.model_server import serve_model
from tests.support.tree import running_tree


@pytest.fixture(scope="session")
def tree(tmp_path_factory):
    """Yield one tree with the simulated engine, shared by all tests that leave the tree as it was."""
    with running_tree(tmp_path_factory.mktemp("tree"), "--engine", "simulated", **PATIENT_ROUTER) as started:
        yield started


@pytest.fixture(scope="session")
def governed(tmp_path_factory):
    """Yield a tree with rails and safety, and the model server that it uses. A test can script the server's answers.

    A test may kill any service, because the tree starts the service again.
    """
    policy = patient_policy(tmp_path_factory.mktemp("policy"))
    with (
        model_server_in_thread() as speaker,
        running_tree(
            tmp_path_factory.mktemp("governed"), "--engine", "openai", "--upstream-url", speaker.url, governed=True,
            RAILBUS_POLICY=str(policy), **PATIENT_ROUTER,
        ) as started,
    ):  # fmt: skip
        yield started, speaker


@contextmanager
def model_server_in_thread():
    """Yield the test model server. It runs in a thread with its own event loop, so that it outlives a test's loop."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    server = serve_model()
    try:
        yield asyncio.run_coroutine_threadsafe(server.__aenter__(), loop).result(30)
    finally:
        asyncio.run_coroutine_threadsafe(server.__aexit__(None, None, None), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()
