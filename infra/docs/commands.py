"""Generate the reference page of commands, from their argument parsers."""

import argparse
import importlib
import inspect
import sys
from collections.abc import Iterator
from functools import cache

from infra.docs.discover import ROOT, anchor, sentence, sources
from infra.docs.tables import code, table


class _Caught(Exception):
    pass


def body() -> str:
    return "".join(_section(parser) for program in programs() for parser in _leaves(program))


def commands() -> set[str]:
    return {parser.prog for program in programs() for parser in _leaves(program)}


def undescribed() -> list[str]:
    return [
        f"{parser.prog} {_name(action)}"
        for program in programs()
        for parser in _leaves(program)
        for action in _arguments(parser)
        if not action.help
    ]


@cache
def programs() -> tuple[argparse.ArgumentParser, ...]:
    names = [module for module, _, text in sources() if module.endswith(".__main__") and "ArgumentParser" in text]
    found = [_parser(name) for name in names]
    # A program that a subcommand starts in a separate process is documented once, as the subcommand.
    inner = {leaf.prog for parser in found for leaf in _leaves(parser) if leaf is not parser}
    own = (parser for parser in found if parser.prog not in inner)
    return tuple(sorted(own, key=lambda parser: (parser.prog != "railbus", parser.prog)))


def _parser(module: str) -> argparse.ArgumentParser:
    parser = _caught(module, ["--help"])  # without an argument a program may end before it parses
    named = [name for action in _subcommands(parser) for name in action.choices]
    return _caught(module, named) if named else parser  # a program may load only the subcommands that it was given


def _caught(module: str, argv: list[str]) -> argparse.ArgumentParser:
    program = importlib.import_module(module)
    original, arguments = argparse.ArgumentParser.parse_args, sys.argv

    def catch(self: argparse.ArgumentParser, *_: object, **__: object) -> None:
        raise _Caught(self)

    argparse.ArgumentParser.parse_args = catch  # type: ignore[method-assign, assignment]
    sys.argv = [module, *argv]
    try:
        called = program.main()
        if inspect.iscoroutine(called):
            called.send(None)
    except _Caught as caught:
        return caught.args[0]  # type: ignore[no-any-return]
    finally:
        argparse.ArgumentParser.parse_args, sys.argv = original, arguments  # type: ignore[method-assign]
    msg = f"{module} parses no arguments"
    raise LookupError(msg)


def _leaves(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    subcommands = _subcommands(parser)
    if not subcommands:
        yield parser
    for action in subcommands:
        helps = {choice.dest: choice.help for choice in action._choices_actions}  # noqa: SLF001
        for name, inner in action.choices.items():
            inner.description = inner.description or helps.get(name)
            yield from _leaves(inner)


def _subcommands(parser: argparse.ArgumentParser) -> list["argparse._SubParsersAction[argparse.ArgumentParser]"]:
    return [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]  # noqa: SLF001


def _arguments(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:  # noqa: SLF001
        if not isinstance(action, argparse._HelpAction) and action.help != argparse.SUPPRESS:  # noqa: SLF001
            yield action


def _section(parser: argparse.ArgumentParser) -> str:
    text = f"\n## {parser.prog} {{ #{anchor(parser.prog)} }}\n\n"
    text += f"{sentence(_about(parser))}\n"
    rows = [(_name(action), _takes(action), _help(parser, action)) for action in _arguments(parser)]
    return text + (table(("argument", "takes", "meaning"), rows) if rows else "\nIt has no arguments.\n")


def _about(parser: argparse.ArgumentParser) -> str:
    return (parser.description or "").removeprefix(f"{parser.prog}: ")


def _name(action: argparse.Action) -> str:
    return ", ".join(map(code, action.option_strings)) or code(action.metavar or action.dest)


def _takes(action: argparse.Action) -> str:
    if action.choices is not None:
        return " or ".join(map(code, action.choices))
    if action.nargs == 0:
        return "nothing"
    names = {int: "a whole number", float: "a number"}
    kind = names.get(action.type, "text") if not action.metavar else code(action.metavar)  # type: ignore[call-overload]
    return f"{kind}, several" if action.nargs in {"*", "+", "..."} or "Append" in type(action).__name__ else str(kind)


def _help(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    text = parser._get_formatter()._expand_help(action) if action.help else ""  # noqa: SLF001
    default = f"{action.default:g}" if isinstance(action.default, float) else action.default
    if isinstance(default, int | str) and not isinstance(default, bool):
        told = default in {"", 0, argparse.SUPPRESS} or str(default) in text
        text += "" if told else f" (default: {default})"
    return sentence(text.replace(f"{ROOT}/", ""))
