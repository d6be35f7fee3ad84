"""Hooks and fixtures for all tests, such as embedded brokers."""

import gc
import os
import signal
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.support.brokers import Broker
from tests.support.examples import examples

# A shell that runs the tests in its background has them ignore Ctrl-C, and every process they start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


# The same examples every time, so that a run says something about the change it was made for. New ones are looked for
# with RAILBUS_RANDOM=1, and more or fewer of them with RAILBUS_TEST_EXAMPLES (10, 0.1).
# No deadline for one example: how busy the machine is decides nothing.
settings.register_profile("fixed", derandomize=True, database=None, deadline=None, max_examples=examples(100))
settings.register_profile("random", deadline=None, max_examples=examples(100))
settings.load_profile("random" if os.environ.get("RAILBUS_RANDOM") == "1" else "fixed")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Disable the garbage collector while pytest collects the tests, then exempt all existing objects from it."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def ours() -> dict[str, str]:
    """Return the environment variables whose names begin with ``RAILBUS_``."""
    return {name: os.environ[name] for name in os.environ if name.startswith("RAILBUS_")}


@pytest.fixture(autouse=True)
def environment_as_it_was() -> Iterator[None]:
    """Restore the product's environment variables after each test, because a command under test may set them."""
    before = ours()
    yield
    if (after := ours()) != before:
        for name in after.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)


@pytest.fixture(scope="session")
def embedded_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Yield a running embedded broker that all tests of the session share.

    A test must not stop this broker, and must use its own topics.
    """
    yield from _running(Broker("embedded", tmp_path_factory.mktemp("broker") / "data"))


@pytest.fixture
def own_embedded_broker(tmp_path: Path) -> Iterator[Broker]:
    """Yield a running embedded broker for one test, which may stop, kill and restart it. The data survive."""
    yield from _running(Broker("embedded", tmp_path / "data"))


def _running(broker: Broker) -> Iterator[Broker]:
    broker.start()
    try:
        yield broker
    finally:
        if broker.is_running():
            broker.stop()
