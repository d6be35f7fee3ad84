"""Test that the weights of the default model are found on the machine, or else downloaded once."""

import asyncio
import hashlib
import importlib.util
import io
import sys

import pytest

from services.runtime import weights
from services.runtime.errors import UserError
from services.runtime.settings import load_settings
from services.runtime.weights import SMOLLM2, CacheSettings, Weights

CONTENT = b"weights" * 1000

WANTED = Weights(
    package="no-such-model", version="1.0", wheel_sha256="0" * 64, module="no_such_model", file="model.gguf",
    size=len(CONTENT), sha256=hashlib.sha256(CONTENT).hexdigest(),
)  # fmt: skip

UV = """#!{python}
import pathlib, sys, time
with open({log!r}, "a") as log:
    log.write(" ".join(sys.argv[1:]) + "\\n")
target = pathlib.Path(sys.argv[sys.argv.index("--target") + 1])
{does}
"""

WRITES = f"""
(target / "no_such_model").mkdir()
(target / "no_such_model" / "model.gguf").write_bytes({CONTENT!r})
"""


@pytest.fixture
def uv(tmp_path, monkeypatch):
    """Return a function that replaces the program ``uv`` with a script, in an environment without pip.

    Call the function with the Python code that the script runs. The result is the file to which the script logs its
    arguments.
    """
    programs = tmp_path / "programs"
    programs.mkdir()
    log = tmp_path / "uv.log"
    log.touch()
    monkeypatch.setenv("PATH", str(programs))
    real = importlib.util.find_spec
    monkeypatch.setattr(weights, "find_spec", lambda name: None if name == "pip" else real(name))

    def do(does):
        program = programs / "uv"
        program.write_text(UV.format(python=sys.executable, log=str(log), does=does))
        program.chmod(0o755)
        return log

    return do


def left_in(folder):
    return sorted(path.name for path in folder.iterdir())


async def test_the_first_start_downloads_and_the_next_one_does_not(tmp_path, uv):
    log, told = uv(WRITES), io.StringIO()
    folder = tmp_path / "cache"
    path = await weights.ensure(WANTED, folder, told)
    assert path.read_bytes() == CONTENT
    assert left_in(folder) == ["model.gguf", "model.gguf.lock"]
    assert "downloading model.gguf (0 MB, once)" in told.getvalue()
    asked = log.read_text()
    for flag in ("--no-deps", "--only-binary :all:", "--require-hashes"):
        assert flag in asked
    told = io.StringIO()
    assert await weights.ensure(WANTED, folder, told) == path
    assert told.getvalue() == ""
    assert log.read_text() == asked


async def test_two_starts_at_once_download_once(tmp_path, uv):
    log = uv("time.sleep(0.5)\n" + WRITES)
    folder, told = tmp_path / "cache", [io.StringIO(), io.StringIO()]
    paths = await asyncio.gather(*(weights.ensure(WANTED, folder, stream) for stream in told))
    assert paths == [folder / "model.gguf"] * 2
    assert len(log.read_text().splitlines()) == 1
    assert "another start is downloading" in told[1].getvalue()


async def test_a_file_with_another_hash_is_refused_and_not_kept(tmp_path, uv):
    uv(WRITES.replace("weights", "strange"))
    folder = tmp_path / "cache"
    with pytest.raises(UserError, match="has the SHA-256"):
        await weights.ensure(WANTED, folder, io.StringIO())
    assert left_in(folder) == ["model.gguf.lock"]


@pytest.mark.parametrize(
    ("does", "said"),
    [
        ("print('warn', file=sys.stderr); sys.exit('error: no route to the index')", r"\(uv: error: no route to the"),
        ("sys.exit(3)", r"\(uv: it gave no reason\)"),
        ("pass", r"does not hold no_such_model/model\.gguf"),
    ],
)
async def test_what_failed_is_said_with_the_remedy(tmp_path, uv, does, said):
    uv(does)
    with pytest.raises(UserError, match=said) as told:
        await weights.ensure(WANTED, tmp_path / "cache", io.StringIO())
    assert "set RAILBUS_MODEL_PATH to a GGUF file" in str(told.value)


async def test_an_installer_that_stalls_is_ended(tmp_path, uv, monkeypatch):
    uv("time.sleep(60)")
    monkeypatch.setattr(weights, "STALL_S", 0.5)
    with pytest.raises(UserError, match="uv wrote nothing for"):
        await weights.ensure(WANTED, tmp_path / "cache", io.StringIO())


async def test_without_an_installer_it_says_what_to_do(tmp_path, uv):
    with pytest.raises(UserError, match="neither pip nor uv is here"):
        await weights.ensure(WANTED, tmp_path / "cache", io.StringIO())


async def test_a_cancelled_download_leaves_nothing_behind(tmp_path, uv):
    log = uv("(target / 'part').write_bytes(b'x')\ntime.sleep(60)")
    folder = tmp_path / "cache"
    task = asyncio.create_task(weights.ensure(WANTED, folder, io.StringIO()))
    while not log.read_text():  # noqa: ASYNC110 - another process writes it
        await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert left_in(folder) == ["model.gguf.lock"]


async def test_what_a_killed_start_left_behind_is_removed(tmp_path, uv):
    uv(WRITES)
    folder = tmp_path / "cache"
    (folder / "download-killed").mkdir(parents=True)
    (folder / "model.gguf").write_bytes(b"half")
    await weights.ensure(WANTED, folder, io.StringIO())
    assert left_in(folder) == ["model.gguf", "model.gguf.lock"]


async def test_a_folder_that_cannot_be_made_is_named(tmp_path, uv):
    uv(WRITES)
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"cannot be kept in .*file/cache: Not a directory; set RAILBUS_CACHE_DIR"):
        await weights.ensure(WANTED, tmp_path / "file" / "cache", io.StringIO())


def test_an_installed_package_is_used_without_importing_it(tmp_path, monkeypatch):
    package = tmp_path / "no_such_model"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('imported')")
    (package / "model.gguf").write_bytes(CONTENT)
    monkeypatch.syspath_prepend(tmp_path)
    assert weights.find(WANTED, tmp_path / "cache") == package / "model.gguf"


@pytest.mark.parametrize(
    ("env", "folder"),
    [
        ({"RAILBUS_CACHE_DIR": "/a/b", "XDG_CACHE_HOME": "/c"}, "/a/b"),
        ({"XDG_CACHE_HOME": "/c", "HOME": "/h"}, "/c/railbus"),
        ({"XDG_CACHE_HOME": "c", "HOME": "/h"}, "/h/.cache/railbus"),
        ({"HOME": "/h"}, "/h/.cache/railbus"),
    ],
)
def test_the_cache_folder(monkeypatch, env, folder):
    monkeypatch.setenv("HOME", env.get("HOME", "/nowhere"))
    assert str(load_settings(CacheSettings, env).folder(env)) == folder


def test_the_pinned_version_is_the_one_that_a_checkout_installs():
    from pathlib import Path

    pins = Path(__file__).parents[3] / "requirements" / "embedded-nodeps.txt"
    assert f"{SMOLLM2.package}=={SMOLLM2.version}" in pins.read_text().split()
