"""Run another program of Railbus so that Ctrl-C ends it silently: ``python -m services.cli.program MODULE ...``."""

# Python's own handler of Ctrl-C would print a traceback, also while the program is being imported.
import _signal  # type: ignore[import-not-found]  # typeshed has only signal
import runpy
import sys


def command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs ``python -m MODULE`` so that Ctrl-C ends it silently."""
    return [sys.executable, "-P", "-m", "services.cli.program", module, *arguments]


def main() -> None:
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
