"""The real Open Policy Agent with a policy's rego folder as its bundle."""

import json
import os
import shutil
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest

from tests.support.processes import free_port


def program():
    """The opa program, or a skip that says how to come by it."""
    go = shutil.which("go")
    homes = [Path.home() / "go"]
    if go is not None:
        told = subprocess.run([go, "env", "GOPATH"], capture_output=True, text=True, timeout=30, check=False)
        homes.insert(0, Path(told.stdout.strip() or homes[0]))
    found = shutil.which("opa", path=os.pathsep.join([os.environ.get("PATH", ""), *(str(h / "bin") for h in homes)]))
    if found is None:
        pytest.skip("opa is neither in PATH nor in GOPATH/bin: `make opa` builds it with Go")
    return found


class OpaServer:
    """One process; whoever starts it ends it."""

    def __init__(self, folder, log):
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._log = log
        command = [program(), "run", "--server", "--addr", f"127.0.0.1:{self.port}", "--bundle", str(folder / "rego")]
        command += ["--set", "decision_logs.console=true", "--skip-version-check", "--log-level", "info"]
        with log.open("w") as stderr:
            self._popen = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=stderr)

    def wait(self):
        for _ in range(1_800):
            assert self._popen.poll() is None, self._log.read_text()
            try:
                with urllib.request.urlopen(f"{self.url}/health?bundles", timeout=5) as answer:
                    if answer.status == 200:
                        return
            except OSError:
                time.sleep(0.05)
        raise AssertionError("OPA does not get ready")

    def ask(self, entry_point, document):
        """What it says; None when the rule is undefined."""
        url = f"{self.url}/v1/data/" + entry_point.removeprefix("data.").replace(".", "/")
        body = json.dumps({"input": document}).encode()
        request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer).get("result")

    def decisions(self):
        """The lines of its decision log."""
        lines = (json.loads(line) for line in self._log.read_text().splitlines())
        return [line for line in lines if line.get("msg") == "Decision Log"]

    def kill(self):
        if self._popen.poll() is None:
            self._popen.kill()
        self._popen.wait(10)
