"""Copy the policies into the wheel. Everything else about the build is in pyproject.toml."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent


class BuildWithPolicies(build_py):
    def run(self) -> None:
        if self.editable_mode:
            super().run()
            return
        built = Path(self.build_lib)
        for package in ("schemas", "services"):  # an earlier build may have left modules that are gone by now
            shutil.rmtree(built / package, ignore_errors=True)
        super().run()
        shutil.copytree(ROOT / "policies", built / "services" / "policy" / "policies")


setup(cmdclass={"build_py": BuildWithPolicies})
