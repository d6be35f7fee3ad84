"""The real Open Policy Agent (OPA) as a server, with the folder ``rego`` of a policy as its bundle."""

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
    """Return the path of the program ``opa``, or skip the test and say how to build the program."""
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
    """One OPA process. Whoever creates it must end it with ``kill``."""

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
        """Return OPA's value of the rule ``entry_point`` for the input ``document``, or None if it is undefined."""
        url = f"{self.url}/v1/data/" + entry_point.removeprefix("data.").replace(".", "/")
        body = json.dumps({"input": document}).encode()
        request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer).get("result")

    def decisions(self):
        """Return the entries of OPA's decision log."""
        lines = (json.loads(line) for line in self._log.read_text().splitlines())
        return [line for line in lines if line.get("msg") == "Decision Log"]

    def kill(self):
        if self._popen.poll() is None:
            self._popen.kill()
        self._popen.wait(10)
