"""Run the real Prometheus and ``promtool``. If they are not installed, tests that need them are skipped."""

import json
import shutil
import subprocess
import urllib.parse
import urllib.request
from contextlib import contextmanager

import pytest
import yaml

from tests.support.processes import die_with_parent, free_port
from tests.support.waiting import wait_until


def program(name):
    """Return the path of ``prometheus`` or ``promtool``. If it is missing, skip the test and say how to install it."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not in PATH: `make tools` installs it from Debian's package prometheus")
    return found


class Prometheus:
    """A client of a running Prometheus server."""

    def __init__(self, url):
        self.url = url

    def get(self, path, **parameters):
        query = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{query}", timeout=30) as answer:
            return json.load(answer)["data"]

    def query(self, expression):
        """Return the result of an instant query: one entry for each time series."""
        return self.get("query", query=expression)["result"]

    def targets(self):
        return self.get("targets", state="active")["activeTargets"]


@contextmanager
def running_prometheus(configuration, folder, *, every="1s", **changes):
    """Within the ``with`` block, run Prometheus with a changed copy of a configuration file. Yield its client.

    Args:
        configuration: Path of the configuration file. Its rule files are used where they are.
        folder: Where Prometheus's data, its log and the copy of the configuration are written.
        every: How often to scrape targets and to evaluate rules.
        changes: Replacements for top-level settings of the configuration.
    """
    settings = yaml.safe_load(configuration.read_text(encoding="utf-8")) | changes
    settings["global"] = {"scrape_interval": every, "evaluation_interval": every}
    settings["rule_files"] = [str(configuration.parent / pattern) for pattern in settings["rule_files"]]
    own = folder / "prometheus.yml"
    own.write_text(yaml.safe_dump(settings), encoding="utf-8")
    port = free_port()
    command = [program("prometheus"), f"--config.file={own}", f"--storage.tsdb.path={folder / 'tsdb'}"]
    command += [f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, preexec_fn=die_with_parent)
    try:
        server = Prometheus(f"http://127.0.0.1:{port}")
        wait_until(lambda: _ready(server.url) or process.poll() is not None, "Prometheus is ready", 60)
        assert process.poll() is None, (folder / "prometheus.log").read_text()
        yield server
    finally:
        process.terminate()
        process.wait(30)


def _ready(url):
    try:
        with urllib.request.urlopen(f"{url}/-/ready", timeout=5) as answer:
            return answer.status == 200
    except OSError:
        return False
