"""Read `docker-compose.yml`, and fill in its variables as compose does.

This module knows only the forms of variables that the file uses: ``${NAME}``, ``${NAME:-default}``, and a name without
a value. It refuses other forms.

The function ``real_config`` lets compose's own loader read the file.
"""

import json
import re
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.support.processes import ROOT, go_program

FILE: Final = ROOT / "docker-compose.yml"
PROGRAM: Final = "compose-config"

_REFERENCE: Final = re.compile(r"\$(?:\{(\w+)(?::-([^${}]*))?\}|(.?))")


def read_env_file(path: Path) -> dict[str, str]:
    """Return the variables of an environment file. A comment must have its own line."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def project_variables(env_file: Path | None, shell: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that compose fills in, from ``env_file`` and ``shell``. ``shell`` overrides ``env_file``."""
    return {**({} if env_file is None else read_env_file(env_file)), **shell}


def interpolated(value: Any, variables: Mapping[str, str]) -> Any:
    """Fill in the variables in every string of a part of the compose file, and return the result.

    Raises:
        ValueError: A reference is neither ``${NAME}`` nor ``${NAME:-default}``.
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
    """Return the names of all variables in a part of the compose file, including variables listed without a value."""
    if isinstance(value, dict):
        passed_on = {name for name, each in value.get("environment", {}).items() if each is None}
        return passed_on.union(*map(references, value.values()))
    if isinstance(value, list):
        return set().union(*map(references, value))
    return {found[1] for found in _REFERENCE.finditer(value) if found[1]} if isinstance(value, str) else set()


def container_environment(service: Mapping[str, Any], variables: Mapping[str, str]) -> dict[str, str]:
    """Return the environment that compose gives a service's container. ``environment`` overrides ``env_file``."""
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
    """Return the content of `docker-compose.yml` with its YAML anchors merged, but no variables filled in."""
    parser = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast, where the package has it
    loaded: dict[str, Any] = yaml.load(FILE.read_text(encoding="utf-8"), parser)
    return loaded


def compose_program() -> str:
    """Return the path of ``PROGRAM``, which reads a compose file with compose's own loader.

    If the program is not installed, skip the test and say how to build the program.
    """
    found = go_program(PROGRAM)
    if found is None:
        pytest.skip(f"{PROGRAM} is neither in PATH nor in GOPATH/bin: `make {PROGRAM}` builds it with Go")
    return found


def real_config(
    program: str, *, profiles: Iterable[str] = (), env_file: Path | None = None, shell: Mapping[str, str]
) -> dict[str, Any]:
    """Return the content of `docker-compose.yml` as compose's own loader reads it. ``program`` runs the loader."""
    options = ["-f", str(FILE)]
    options += [] if env_file is None else ["--env-file", str(env_file)]
    options += [option for profile in profiles for option in ("--profile", profile)]
    told = subprocess.run([program, *options], env=dict(shell), capture_output=True, text=True, timeout=60, check=False)
    assert (told.returncode, told.stderr) == (0, "")
    config: dict[str, Any] = json.loads(told.stdout)
    return config
