"""What every process needs: start and stop, settings, errors, clock, log, metrics, health."""

from services.runtime.errors import UserError
from services.runtime.process import run

__all__ = ["UserError", "run"]
