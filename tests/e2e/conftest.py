import pytest

from tests.e2e.tree import running


@pytest.fixture(scope="session")
def tree(tmp_path_factory):
    """One tree with the simulated engine for every test that leaves it as it was."""
    with running(tmp_path_factory.mktemp("tree"), "--engine", "simulated") as started:
        yield started
