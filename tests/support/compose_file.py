"""`docker-compose.yml` as compose reads it: interpolation, where a variable comes from, and the real program.

Only what the file uses: ``${NAME}``, ``${NAME:-default}`` and a name without a value. Other forms are refused.
"""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.support.processes import ROOT

FILE: Final = ROOT / "docker-compose.yml"
PROGRAM: Final = "docker-compose"

_REFERENCE: Final = re.compile(r"\$(?:\{(\w+)(?::-([^${}]*))?\}|(.?))")


def read_env_file(path: Path) -> dict[str, str]:
    """Return the variables of an environment file; a comment is a line of its own."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def project_variables(env_file: Path | None, shell: Mapping[str, str]) -> dict[str, str]:
    """Return what compose interpolates with: ``--env-file``, and before it the shell."""
    return {**({} if env_file is None else read_env_file(env_file)), **shell}


def interpolated(value: Any, variables: Mapping[str, str]) -> Any:
    """Fill in the references in every string.

    Raises:
        ValueError: A reference has a form that this does not know.
    """
    if isinstance(value, dict):
        return {name: interpolated(each, variables) for name, each in value.items()}
    if isinstance(value, list):
        return [interpolated(each, variables) for each in value]
    if not isinstance(value, str):
        return value

    def fill(found: re.Match[str]) -> str:
        name, default, other = found.groups()
        if other is not None:
            raise ValueError(f"{value!r}: only ${{NAME}} and ${{NAME:-default}} are read here")
        return variables.get(name, "") or (default or "")

    return _REFERENCE.sub(fill, value)


def references(value: Any) -> set[str]:
    """Return the names of all variables that a part of the file refers to, names without a value among them."""
    if isinstance(value, dict):
        passed_on = {name for name, each in value.get("environment", {}).items() if each is None}
        return passed_on.union(*map(references, value.values()))
    if isinstance(value, list):
        return set().union(*map(references, value))
    return {found[1] for found in _REFERENCE.finditer(value) if found[1]} if isinstance(value, str) else set()


def container_environment(service: Mapping[str, Any], variables: Mapping[str, str]) -> dict[str, str]:
    """Return the environment that compose gives a service's container: ``env_file``, and before it ``environment``."""
    found: dict[str, str] = {}
    files = service.get("env_file", [])
    for path in [files] if isinstance(files, str) else files:
        found |= read_env_file(ROOT / interpolated(path, variables))
    for name, value in service.get("environment", {}).items():
        if value is not None:
            found[name] = str(interpolated(value, variables))
        elif name in variables:
            found[name] = variables[name]
    return found


def load() -> dict[str, Any]:
    """Return the file with its anchors merged, and nothing filled in."""
    loaded: dict[str, Any] = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    return loaded


def compose_command() -> list[str]:
    """Return how the real compose is called here; without one the test is skipped, and told how to come by it."""
    go = shutil.which("go")
    homes = [Path.home() / "go"]
    if go is not None:
        told = subprocess.run([go, "env", "GOPATH"], capture_output=True, text=True, timeout=30, check=False)
        homes.insert(0, Path(told.stdout.strip() or homes[0]))
    path = os.pathsep.join([os.environ.get("PATH", ""), *(str(home / "bin") for home in homes)])
    found = shutil.which(PROGRAM, path=path)
    if found is not None and _runs([found]):
        return [found]
    if shutil.which("docker") and _runs(["docker", "compose"]):
        return ["docker", "compose"]
    pytest.skip("neither docker-compose nor docker's plug-in compose 2 is here: `make compose` builds it with Go")


def _runs(command: list[str]) -> bool:
    """Whether it is there and no 1.x, which does not know the format."""
    told = subprocess.run([*command, "version", "--short"], capture_output=True, text=True, timeout=60, check=False)
    return told.returncode == 0 and not told.stdout.startswith("1.")


def real_config(
    command: list[str], *, profiles: Iterable[str] = (), env_file: Path | None = None, shell: Mapping[str, str]
) -> dict[str, Any]:
    """Return what ``compose config`` makes of the file."""
    options = ["--project-directory", str(ROOT), "-f", str(FILE)]
    options += [] if env_file is None else ["--env-file", str(env_file)]
    options += [option for profile in profiles for option in ("--profile", profile)]
    kept = {name: value for name, value in os.environ.items() if name in {"PATH", "HOME"}}
    told = subprocess.run(
        [*command, *options, "config", "--format", "json"],
        env=kept | shell, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert told.returncode == 0, told.stderr
    assert "level=warning" not in told.stderr, told.stderr
    config: dict[str, Any] = json.loads(told.stdout)
    return config
