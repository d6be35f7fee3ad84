"""Test that a load tool for OpenAI-compatible servers works unchanged, as docs/how-to/load-tools.md describes."""

import json
import os
import re
import subprocess
import venv
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "load-tools.md"
PATIENCE_S = 600
USERS = 4


@pytest.fixture(scope="session")
def locust(tmp_path_factory):
    """Return the Locust program that RAILBUS_TEST_LOCUST names.

    If RAILBUS_TEST_LOCUST is 1, install Locust into a virtual environment. docs/how-to/load-tools.md names the version.
    """
    found = os.environ.get("RAILBUS_TEST_LOCUST")
    if not found:
        pytest.skip("RAILBUS_TEST_LOCUST=1 installs Locust into a virtual environment; or name its program")
    if found != "1":
        return found
    (version,) = re.findall(r"^## Locust (\S+)$", PAGE.read_text("utf-8"), re.MULTILINE)
    folder = tmp_path_factory.mktemp("locust")
    venv.create(folder, with_pip=True)
    pip = [folder / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    subprocess.run([*pip, f"locust=={version}"], check=True, timeout=PATIENCE_S)
    return folder / "bin" / "locust"


@pytest.mark.slow
def test_locust(tree, locust, tmp_path):
    (users,) = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    (tmp_path / "locustfile.py").write_text(users)
    command = [locust, "--headless", "--users", str(USERS), "--spawn-rate", str(USERS), "--run-time", "5s"]
    output = ["--stop-timeout", "60", "--skip-log", "--json"]
    done = subprocess.run(
        [*command, *output, "--host", tree.url],
        capture_output=True, text=True, timeout=PATIENCE_S, cwd=tmp_path, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    (completions,) = json.loads(done.stdout)
    assert completions["name"] == "/v1/chat/completions"
    assert completions["num_failures"] == 0
    assert completions["num_requests"] >= USERS
