"""Copy the policies into the wheel. Everything else about the build is in pyproject.toml."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent


class BuildWithPolicies(build_py):
    """Put ``policies/`` where ``default_policy`` finds it in an installation (services/runtime/policy_deadlines.py)."""

    def run(self) -> None:
        """Build, and copy; an editable install reads the checkout's own."""
        if self.editable_mode:
            super().run()
            return
        built = Path(self.build_lib)
        for package in ("schemas", "services"):  # an earlier build may have left modules that are gone by now
            shutil.rmtree(built / package, ignore_errors=True)
        super().run()
        shutil.copytree(ROOT / "policies", built / "services" / "policy" / "policies")


setup(cmdclass={"build_py": BuildWithPolicies})
