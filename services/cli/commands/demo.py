"""``railbus demo``: an ordinary answer, and everything that can happen to one, beside the log that decided it."""

import argparse
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from services.cli.command import run_coroutine
from services.cli.demo.scenes import SCENES, Scene, complaints
from services.cli.demo.spans import Line, Span, picture, with_colours, without_colours
from services.cli.demo.stage import Played, opened
from services.cli.demo.story import heading, story
from services.cli.packages import need_governance, need_vertex
from services.runtime.errors import UserError
from services.runtime.logging import LEVEL_VARIABLE

COLUMNS: Final = 132
"""Width where there is no terminal; a narrower one breaks lines earlier, down to ``NARROWEST``."""

NARROWEST: Final = 80
WIDEST: Final = 150

_NAMES: Final = tuple(scene.name for scene in SCENES)


def add(parser: argparse.ArgumentParser) -> None:
    """Its flags."""
    parser.add_argument(
        "--scene", action="append", choices=_NAMES, metavar="NAME", help=f"only this one, of {', '.join(_NAMES)}"
    )
    parser.add_argument("--svg", type=Path, metavar="FILE", help="write a picture of it as well")


def run(args: argparse.Namespace) -> int:
    """Exit code 0 when every scene ended as it should, 1 when one did not."""
    need_governance(instead="")
    need_vertex()
    for name in tuple(os.environ):  # the demo is the same everywhere
        if name.startswith("RAILBUS_") and name != LEVEL_VARIABLE:
            del os.environ[name]
    chosen = [scene for scene in SCENES if args.scene is None or scene.name in args.scene]
    return run_coroutine(_main(chosen, args.svg))


async def _main(scenes: Sequence[Scene], svg: Path | None) -> int:
    screen = _Screen()
    failed = 0
    sys.stderr.write("starting broker, engine, rails, router, cloud emulator, safety and edge\n")
    async with opened() as stage:
        await stage.warm_up()
        for scene in scenes:
            screen.begin(_title(scene, screen.columns))

            def draw(played: Played) -> None:
                screen.draw(partial(story, played.records, played.ops, screen.columns))

            played = await stage.play(scene, draw)
            draw(played)
            wrong = [played.failure] if played.failure else complaints(scene, played.told)
            failed += bool(wrong)
            screen.end(_verdict(wrong))
    screen.end(
        [Span(f"{len(scenes) - failed} of {len(scenes)} scenes ended as they should", "bad" if failed else "good")]
    )
    if svg is not None:
        _write(svg, picture(screen.all, screen.columns))
    return 1 if failed else 0


def _title(scene: Scene, columns: int) -> list[Line]:
    asked = f"  asked: {scene.prompt}   engine: {scene.script}"
    return [[Span(f"{scene.name}: {scene.title}", "head")], [Span(asked[:columns], "soft")], heading(columns)]


def _verdict(wrong: Sequence[str]) -> Line:
    if wrong:
        return [Span(f"NOT as it should be: {'; '.join(wrong)}", "bad")]
    return [Span("as it should be", "good")]


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"--svg {path}: {error.strerror}") from None


def _nothing(*, marks: bool = False) -> list[Line]:  # noqa: ARG001 - in place of a scene
    return []


class _Screen:
    """Standard output: a scene is drawn again and again on a terminal, once anywhere else.

    Attributes:
        columns: Its width.
        all: Everything, as it stood at the end.
    """

    def __init__(self) -> None:
        self._live = sys.stdout.isatty()
        size = shutil.get_terminal_size((COLUMNS, 50))
        self.columns = max(NARROWEST, min(size.columns - 1 if self._live else COLUMNS, WIDEST))
        self._rows = size.lines
        self._drawn = 0
        self._scene: Callable[..., list[Line]] = _nothing
        self.all: list[Line] = []

    def begin(self, title: Sequence[Line]) -> None:
        """A scene's first lines."""
        self.all += title
        for line in title:
            self._print(line)

    def draw(self, scene: Callable[..., list[Line]]) -> None:
        """The scene as it stands; what is longer than the terminal waits for its end."""
        self._scene = scene
        if self._live and len(lines := scene()) < self._rows:
            self._back()
            for line in lines:
                sys.stdout.write(with_colours(line) + "\n")
            self._drawn = len(lines)
            sys.stdout.flush()

    def end(self, line: Line) -> None:
        """The scene stays as it is; the last line is written under it."""
        self._back()
        last = [line, [Span("")]]
        self.all += self._scene() + last
        for each in self._scene(marks=not self._live) + last:
            self._print(each)
        self._scene = _nothing

    def _back(self) -> None:
        if self._drawn:
            sys.stdout.write(f"\x1b[{self._drawn}A\x1b[J")
            self._drawn = 0

    def _print(self, line: Line) -> None:
        sys.stdout.write((with_colours(line) if self._live else without_colours(line)) + "\n")
        sys.stdout.flush()
