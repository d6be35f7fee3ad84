"""``railbus demo``: play scenes, each of which shows an answer beside its events on the log."""

import argparse
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from services.cli.common import run_coroutine
from services.cli.demo.demo_tree import SceneRun, open_demo_tree
from services.cli.demo.scenes import SCENES, Scene, find_mismatches
from services.cli.demo.styled_text import StyledLine, StyledSpan, to_ansi, to_plain_text, to_svg
from services.cli.demo.timeline import render_timeline, timeline_header
from services.cli.tree.extras import require_governance, require_vertex
from services.runtime.errors import UserError
from services.runtime.logging import LEVEL_VARIABLE

DEFAULT_COLUMNS: Final = 132
"""Width of a line in characters, if standard output is not a terminal."""

MIN_COLUMNS: Final = 80
MAX_COLUMNS: Final = 150

_NAMES: Final = tuple(scene.name for scene in SCENES)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--scene",
        action="append",
        choices=_NAMES,
        metavar="NAME",
        help=f"play only this scene (repeatable): {', '.join(_NAMES)}",
    )
    parser.add_argument("--svg", type=Path, metavar="FILE", help="also write the scenes to this SVG file")


def run(args: argparse.Namespace) -> int:
    """Play the chosen scenes. Return 0 if all of them ended as expected, else 1."""
    require_governance(instead="")
    require_vertex()
    for name in tuple(os.environ):  # settings of this shell must not change the demo
        if name.startswith("RAILBUS_") and name != LEVEL_VARIABLE:
            del os.environ[name]
    chosen = [scene for scene in SCENES if args.scene is None or scene.name in args.scene]
    return run_coroutine(_main(chosen, args.svg))


async def _main(scenes: Sequence[Scene], svg: Path | None) -> int:
    screen = _DemoDisplay()
    failed = 0
    sys.stderr.write("starting broker, engine, rails, router, cloud emulator, safety and edge\n")
    async with open_demo_tree() as tree:
        await tree.warm_up()
        for scene in scenes:
            screen.begin(_title(scene, screen.columns))

            def draw(scene_run: SceneRun) -> None:
                screen.draw(partial(render_timeline, scene_run.records, scene_run.ops, screen.columns))

            scene_run = await tree.play(scene, draw)
            draw(scene_run)
            wrong = [scene_run.failure] if scene_run.failure else find_mismatches(scene, scene_run.trace)
            failed += bool(wrong)
            screen.end(_verdict(wrong))
    screen.end(
        [
            StyledSpan(
                f"{len(scenes) - failed} of {len(scenes)} scenes ended as they should", "bad" if failed else "good"
            )
        ]
    )
    if svg is not None:
        _write(svg, to_svg(screen.all, screen.columns))
    return 1 if failed else 0


def _title(scene: Scene, columns: int) -> list[StyledLine]:
    asked = f"  asked: {scene.prompt}   engine: {scene.script}"
    return [
        [StyledSpan(f"{scene.name}: {scene.title}", "head")],
        [StyledSpan(asked[:columns], "dim")],
        timeline_header(columns),
    ]


def _verdict(wrong: Sequence[str]) -> StyledLine:
    if wrong:
        return [StyledSpan(f"NOT as it should be: {'; '.join(wrong)}", "bad")]
    return [StyledSpan("as it should be", "good")]


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"--svg {path}: {error.strerror}") from None


def _no_scene(*, mark_withdrawn: bool = False) -> list[StyledLine]:  # noqa: ARG001 - in place of a scene
    return []


class _DemoDisplay:
    def __init__(self) -> None:
        self._live = sys.stdout.isatty()
        size = shutil.get_terminal_size((DEFAULT_COLUMNS, 50))
        self.columns = max(MIN_COLUMNS, min(size.columns - 1 if self._live else DEFAULT_COLUMNS, MAX_COLUMNS))
        self._rows = size.lines
        self._drawn = 0
        self._scene: Callable[..., list[StyledLine]] = _no_scene
        self.all: list[StyledLine] = []

    def begin(self, title: Sequence[StyledLine]) -> None:
        self.all += title
        for line in title:
            self._print(line)

    def draw(self, scene: Callable[..., list[StyledLine]]) -> None:
        self._scene = scene
        if self._live and len(lines := scene()) < self._rows:
            self._back()
            for line in lines:
                sys.stdout.write(to_ansi(line) + "\n")
            self._drawn = len(lines)
            sys.stdout.flush()

    def end(self, line: StyledLine) -> None:
        self._back()
        last = [line, [StyledSpan("")]]
        self.all += self._scene() + last
        for each in self._scene(mark_withdrawn=not self._live) + last:
            self._print(each)
        self._scene = _no_scene

    def _back(self) -> None:
        if self._drawn:
            sys.stdout.write(f"\x1b[{self._drawn}A\x1b[J")
            self._drawn = 0

    def _print(self, line: StyledLine) -> None:
        sys.stdout.write((to_ansi(line) if self._live else to_plain_text(line)) + "\n")
        sys.stdout.flush()
