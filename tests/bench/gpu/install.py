"""Install vLLM for the GPU into a virtual environment, with pinned versions.

The machine needs only Python and a GPU driver.
"""

import importlib.util
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PINS = ("base", "vllm")


def python_with_vllm(folder: Path) -> Path | None:
    """Return a Python interpreter that has vLLM; None if there is none.

    It is the running interpreter, or the interpreter of the virtual environment in ``folder``.
    """
    if importlib.util.find_spec("vllm") is not None:
        return Path(sys.executable)
    made = folder / "venv" / "bin" / "python"
    return made if (folder / "venv" / ".ready").exists() else None


def install(folder: Path, wheels: Sequence[str], limit_s: float) -> Path:
    """Return a Python interpreter that has vLLM. If there is none, install vLLM into a virtual environment first.

    If the installation was interrupted, the next call reuses what pip has in its cache.

    Args:
        folder: Folder of the virtual environment.
        wheels: Folders with wheels, for a machine without access to a package registry. If given, pip uses only them.
        limit_s: Timeout of each command, in seconds.

    Raises:
        SystemExit: pip failed, or took longer than ``limit_s``.
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
