"""Code that every service uses: settings, errors, clocks, logging, metrics and health checks."""

from services.runtime.errors import UserError
from services.runtime.process import run

__all__ = ["UserError", "run"]
