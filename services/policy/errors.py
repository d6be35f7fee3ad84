from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from services.runtime.errors import UnavailableError, UserError


@dataclass(frozen=True, slots=True, order=True)
class PolicyFault:
    """A fault in a policy's files.

    Attributes:
        path: Path of the file, relative to the policy's folder.
        line: Line number from 1; 0 for the whole file.
        message: What is wrong, and how to correct it.
    """

    path: str
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}"


class PolicyError(Exception):
    pass


class BrokenPolicy(PolicyError):
    """A policy's files have faults. The message has one line for each fault.

    Attributes:
        temporary: Whether the same files may be accepted later, because an ``OSError`` or a timeout caused the faults.
        forbidden: Whether this ``OSError`` was that the process may not read a file, which does not pass by itself.
    """

    def __init__(
        self, faults: Sequence[PolicyFault], *, temporary: bool = False, forbidden: bool = False
    ) -> None:  # fmt: skip
        self.faults = tuple(faults)
        self.temporary = temporary
        self.forbidden = forbidden
        super().__init__("\n".join(map(str, self.faults)))


class RulingError(PolicyError):
    """Rego gave no answer, or an invalid one. The caller must fail closed."""


def start_error(root: Path, broken: BrokenPolicy) -> UserError | UnavailableError:
    """Return the error that ends a service which cannot start with the policy in this folder."""
    message = f"RAILBUS_POLICY={root}: {broken}"
    return UnavailableError(message) if broken.temporary and not broken.forbidden else UserError(message)


def broken_by(error: Exception) -> BrokenPolicy:
    if isinstance(error, BrokenPolicy):
        return error
    if isinstance(error, RecursionError):
        return BrokenPolicy([PolicyFault(".", 0, "a file is nested too deeply; make its structure flatter")])
    return BrokenPolicy(
        [PolicyFault(".", 0, f"it cannot be used ({type(error).__name__}: {error}); undo the last edit")],
        temporary=isinstance(error, OSError),
    )
