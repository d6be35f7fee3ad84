"""What the installed program ``railbus`` calls first.

Until a command runs, Ctrl-C ends the process at once: Python's own handler would raise ``KeyboardInterrupt`` in the
middle of an import, which prints a traceback. So this module imports nothing that takes time: ``_signal`` is compiled
into the interpreter, and ``signal`` needs ``enum``. The interpreter's own start, which comes before, is not covered.
"""

import _signal  # type: ignore[import-not-found]  # typeshed has only signal


def main() -> int:
    """Run one subcommand and return its exit code."""
    handler = _signal.getsignal(_signal.SIGINT)
    if handler is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    from services.cli.__main__ import main as run_command

    return run_command(interrupt_handler=handler)
