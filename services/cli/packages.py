"""What the tree imports of the extras: checked before anything starts, so that the remedy is one line."""

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Final

from services.runtime.errors import UserError

GOVERNANCE: Final = ("nemoguardrails", "presidio_analyzer", "regorus", "ahocorasick", "jailguard")
"""What rails and safety import, as modules."""

VERTEX: Final = ("google.genai",)
"""What the Vertex AI worker imports."""


def need_governance(*, instead: str) -> None:
    """Rails and safety can run.

    Raises:
        UserError: Something is not installed; ``instead`` says how to go without.
    """
    _need(GOVERNANCE, f"rails and safety need %s: pip install -r requirements/governance.txt{instead}")


def need_vertex() -> None:
    """The Vertex AI worker can run.

    Raises:
        UserError: Something is not installed.
    """
    _need(VERTEX, "the Vertex AI worker needs %s: pip install -r requirements/vertex.txt")


def _need(modules: Sequence[str], message: str) -> None:
    missing = [module for module in modules if not _is_there(module)]
    if missing:
        raise UserError(message % ", ".join(missing))


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the package around it is not there
        return False
