"""Code that every process uses: start and stop, settings, errors, clock, logging, metrics, health."""

from services.runtime.errors import UserError
from services.runtime.process import run

__all__ = ["UserError", "run"]
