"""``python -m tests.world.compiled``: run simulations as ``railbus simulate`` does, at twice the speed.

mypyc compiles a copy of the cores, of the fold and of the simulator. That takes two minutes and needs a C compiler.
Then the first seeds are run with the copy and with the original, and must give the same simulations.

    python -m tests.world.compiled --folder ../compiled --seed 40000000 --runs 100000 --workers 2
"""

import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

COPIED = ("services", "schemas", "policies")

COMPILED = (
    "services/bus/groups/commit_tracker.py",
    "services/bus/groups/held_partitions.py",
    "services/bus/partitioner.py",
    "services/bus/read/log_clock.py",
    "services/bus/write/outbox.py",
    "services/edge/delivery/held_events.py",
    "services/edge/delivery/session.py",
    "services/edge/delivery/stats.py",
    "services/edge/encoders/*.py",
    "services/edge/log/follow_plan.py",
    "services/edge/log/positions.py",
    "services/edge/log/request_index.py",
    "services/policy/matching/automaton.py",
    "services/policy/matching/positions.py",
    "services/policy/matching/scanner.py",
    "services/processor/fair_queue.py",
    "services/rails/core.py",
    "services/router/core.py",
    "services/router/partition.py",
    "services/router/decide/*.py",
    "services/router/state/*.py",
    "services/safety/core.py",
    "services/safety/partition.py",
    "services/safety/decide/*.py",
    "services/simulator/judge/*.py",
    "services/simulator/kafka/*.py",
    "services/simulator/plan.py",
    "services/simulator/simulation.py",
    "services/simulator/tree/*.py",
    "services/stream/*.py",
    "services/worker/scheduler.py",
)

NOT_COMPILED = ("services/stream/ops.py",)
"""Modules with msgspec structs. mypyc drops the arguments in their ``class`` lines, such as ``frozen=True``."""

EDITS = {
    # a compiled class cannot inherit from AssertionError
    "services/simulator/judge/oracle.py": (
        ("class Violation(", "@mypyc_attr(native_class=False)\nclass Violation("),
        ("\nfrom schemas", "\nfrom mypy_extensions import mypyc_attr\nfrom schemas"),
    ),
    # a compiled class cannot narrow the type of an inherited attribute
    "services/simulator/tree/workers.py": (
        ("    core: WorkerCore\n    worker", "    worker"),
        ("self.core.close()", "self.core.close()  # type: ignore[attr-defined]"),
    ),
    # an object of a compiled class has no ``__dict__``, so the garbage collector does this work
    "services/simulator/world.py": (("vars(part).clear()", 'getattr(part, "__dict__", {}).clear()'),),
    "services/simulator/runs.py": (("PART: Final = 10", "PART: Final = 50"),),
}

CHECKED_SEEDS = 50


def copy_tree(folder: Path) -> None:
    """Copy the source code to ``folder``, and change what mypyc cannot compile."""
    for name in COPIED:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    for path, edits in EDITS.items():
        for old, new in edits:
            edit(folder / path, old, new)
    put_rules_outside(folder / "services/stream/screen.py")
    (folder / "mypy.ini").write_text("[mypy]\nstrict = True\nignore_missing_imports = True\n", encoding="utf-8")


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    if text.count(old) < 1:
        sys.exit(f"{path}: there is no {old!r} any more: change EDITS of {__name__}")
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


def put_rules_outside(path: Path) -> None:
    """Move the table ``_RULES`` out of its class, because the body of a compiled class cannot name its own methods."""
    text = path.read_text(encoding="utf-8")
    found = re.search(r"    _RULES: ClassVar.*?\n    }\n", text, re.DOTALL)
    if found is None:
        sys.exit(f"{path}: there is no _RULES any more: change {__name__}")
    rows = re.sub(r": (_on_\w+),", r": Screen.\1,", found[0]).replace("\n    ", "\n")
    table = re.sub(r"    _RULES: .*= \{", "_RULES: dict[type, Callable[[Screen, Any], Ops]] = {", rows)
    text = text.replace(found[0], "").replace("self._RULES.get", "_RULES.get").replace("Any, ClassVar,", "Any,")
    path.write_text(f"{text}\n\n{table}", encoding="utf-8")


def compile_copy(folder: Path) -> None:
    found = {str(path.relative_to(folder)) for pattern in COMPILED for path in folder.glob(pattern)}
    sources = sorted(found.difference(NOT_COMPILED))
    mypyc = Path(sys.executable).with_name("mypyc")
    done = subprocess.run([mypyc, *sources], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        shutil.rmtree(folder)  # else the next call would run a copy that is not compiled
        sys.exit(f"mypyc failed:\n{done.stdout[-4_000:]}\n{done.stderr[-4_000:]}")


def simulate(tree: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "services.simulator", *options]
    return subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)


def schedule(tree: Path, seed: int) -> str:
    """Simulate ``CHECKED_SEEDS`` seeds, beginning with ``seed``, with the code in ``tree``.

    Return a hash of everything that happened.
    """
    said = simulate(tree, "--seed", str(seed), "--runs", str(CHECKED_SEEDS)).stdout
    found = re.search(r"schedule ([0-9a-f]{16})", said)
    if found is None:
        sys.exit(f"{tree}: the simulation printed no schedule:\n{said}")
    return found[1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="the compiled copy; made if it is not there")
    parser.add_argument("--seed", type=int, required=True)
    given, rest = parser.parse_known_args()
    if not given.folder.exists():
        copy_tree(given.folder)
        compile_copy(given.folder)
    theirs, ours = schedule(given.folder, given.seed), schedule(ROOT, given.seed)
    if theirs != ours:
        sys.exit(f"the copy has another schedule ({theirs}) than the tree ({ours}): remove {given.folder}")
    command = [sys.executable, "-m", "services.simulator", "--seed", str(given.seed), *rest]
    return subprocess.run(command, cwd=given.folder, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
