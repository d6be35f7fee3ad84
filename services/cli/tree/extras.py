"""Check that the required packages and model files are present, before any process starts."""

import os
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Final

from services.runtime import weights
from services.runtime.errors import UserError
from services.runtime.settings import load_settings
from services.runtime.weights import SMOLLM2, CacheSettings

MODEL_PATH: Final = "RAILBUS_MODEL_PATH"

EMBEDDED: Final = ("xllamacpp",)
"""Modules that engine llama imports."""

POLICIES: Final = ("regorus", "ahocorasick", "yaml")
"""Modules that are imported to read a policy."""

GOVERNANCE_MODULES: Final = ("nemoguardrails", "presidio_analyzer", "regorus", "ahocorasick", "jailguard")
"""Modules that rails and safety import. The extra ``governance`` installs them."""

VERTEX_MODULES: Final = ("google.genai",)
"""Modules that the Vertex AI worker imports. The extra ``vertex`` installs them."""

LEDGER_MODULES: Final = ("faust",)
"""Modules that the ledger imports. The extra ``faust`` installs them."""

AUDIT_MODULES: Final = ("pyarrow", "duckdb", "cryptography")
"""Modules that are imported to write and read archives. The extra ``audit`` installs them."""

TRACER_MODULES: Final = ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http")
"""Modules that the tracer imports. The extra ``otel`` installs them."""


def install(extra: str) -> str:
    """Return the command that installs an extra. If ``extra`` is empty, return the command that upgrades Railbus."""
    return f"pip install 'railbus[{extra}]'" if extra else "pip install --upgrade railbus"


def need_embedded() -> None:
    _require(EMBEDDED, f"engine llama needs %s: {install('embedded')}, or start with --engine simulated")


async def bring_weights(options: Mapping[str, str]) -> None:
    """Download the default model of engine ``llama`` if it is needed.

    Raises:
        UserError: The file cannot be downloaded.
    """
    # The command line downloads the file, because it can show the progress and has no deadline for its start.
    if not (options.get(MODEL_PATH) or os.environ.get(MODEL_PATH)):
        await weights.ensure(SMOLLM2, load_settings(CacheSettings).folder())


def need_policies() -> None:
    _require(POLICIES, f"policies need %s: {install('governance')}")


def require_governance(*, instead: str) -> None:
    """Check that the packages of the services ``rails`` and ``safety`` are installed.

    Raises:
        UserError: A package is not installed. The message ends with ``instead``, which may name an alternative.
    """
    _require(GOVERNANCE_MODULES, f"rails and safety need %s: {install('governance')}{instead}")


def require_vertex() -> None:
    _require(VERTEX_MODULES, f"the Vertex AI worker needs %s: {install('vertex')}")


def has_ledger() -> bool:
    return all(map(_is_installed, LEDGER_MODULES))


def require_ledger() -> None:
    _require(LEDGER_MODULES, f"the ledger needs %s: {install('faust')}, or start without it: --no-ledger")


def require_audit() -> None:
    _require(AUDIT_MODULES, f"archives need %s: {install('audit')}")


def require_otel() -> None:
    _require(TRACER_MODULES, f"traces need %s: {install('otel')}")


def _require(modules: Sequence[str], message: str) -> None:
    missing = [module for module in modules if not _is_installed(module)]
    if missing:
        raise UserError(message % ", ".join(missing))


def _is_installed(module: str) -> bool:
    if module in sys.modules:  # find_spec may fail for it, because Faust replaces its own module
        return True
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # its parent package is not installed
        return False
