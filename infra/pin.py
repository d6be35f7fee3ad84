"""Pin the project's dependencies: write their installed versions to requirements/*.txt (``make pins``).

Each file lists the packages that one extra of the project needs in addition to ``base.txt``. The files
``*-nodeps.txt`` are written by hand.
"""

import tomllib
from collections.abc import Iterable
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
HEAD = "# Written by `make pins`. Exact versions, transitive.\n"


def closure(wanted: Iterable[Requirement]) -> dict[str, str]:
    """Return the installed version of every package that the requirements need, including indirect dependencies.

    Raises:
        SystemExit: If an installed version does not match a requirement.
    """
    found: dict[str, str] = {}
    todo = list(wanted)
    while todo:
        requirement = todo.pop()
        name = canonicalize_name(requirement.name)
        installed = distribution(name)
        if not requirement.specifier.contains(installed.version, prereleases=True):
            raise SystemExit(f"{name} {installed.version} is installed, pyproject.toml wants {requirement.specifier}")
        new = name not in found
        found[name] = installed.version
        if new or requirement.extras:
            todo += _needed(installed.requires or (), requirement.extras)
    return found


def _needed(texts: Iterable[str], extras: Iterable[str]) -> Iterable[Requirement]:
    for text in texts:
        requirement = Requirement(text)
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            yield requirement


def main() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    base = closure(map(Requirement, project["dependencies"]))
    files = {"base": base}
    for extra, wanted in project["optional-dependencies"].items():
        try:
            files[extra] = {name: v for name, v in closure(map(Requirement, wanted)).items() if name not in base}
        except ModuleNotFoundError as error:
            print(f"{extra}.txt stays as it is: {error.name} is not installed here")
    for name, pins in files.items():
        lines = [f"{package}=={version}\n" for package, version in sorted(pins.items())]
        (ROOT / "requirements" / f"{name}.txt").write_text(HEAD + "".join(lines), encoding="utf-8")
        print(f"{name}.txt: {len(lines)} packages")


if __name__ == "__main__":
    main()
