"""Read prompts from a file.

Each line has one of three forms: a request of OpenAI's Batch API, or a JSON object with a prompt, or plain text.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import orjson

from services.runtime.errors import UserError

MAX_BYTES: Final = 256 * 2**20


def read_prompts(path: Path, max_prompts: int) -> list[str]:
    """Return prompts that are evenly spread over the file. ``max_prompts`` is their maximum number.

    Raises:
        UserError: The file cannot be read, is empty, or a line has no prompt.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise UserError(f"--sample {path}: more than {MAX_BYTES // 2**20} MiB; give a part of it")
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UserError(f"--sample {path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise UserError(f"--sample {path}: is not UTF-8 text; give prompts as JSONL, or one a line") from None
    # Not ``splitlines``: JSON may have U+2028 and other separators within a string.
    lines = [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    if not lines:
        raise UserError(f"--sample {path}: has no prompts; give them as JSONL, or one a line")
    chosen = (
        range(len(lines))
        if len(lines) <= max_prompts
        else [number * len(lines) // max_prompts for number in range(max_prompts)]
    )
    return [_prompt(lines[place][1], path, lines[place][0]) for place in chosen]


def _prompt(line: str, path: Path, number: int) -> str:
    if not line.lstrip().startswith("{"):
        return line
    try:
        found: Any = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise UserError(f"--sample {path}: line {number} is not JSON ({error})") from None
    body = found.get("body", found)
    prompt = body.get("prompt") if isinstance(body, dict) else None
    if isinstance(prompt, str):
        return prompt
    messages = body.get("messages") if isinstance(body, dict) else None
    texts = [_text(message) for message in messages] if isinstance(messages, list) else []
    if not any(texts):
        raise UserError(f"--sample {path}: line {number} has neither a prompt nor messages")
    return "\n\n".join(text for text in texts if text)


def _text(message: Any) -> str:
    content = message.get("content") if isinstance(message, dict) else None
    if isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, dict)]
        return "".join(text for text in texts if isinstance(text, str))
    return content if isinstance(content, str) else ""


def divided(prompts: Sequence[str], at_once: int) -> list[tuple[int, Sequence[str]]]:
    """Divide the prompts among closed loops. Return each loop's number of concurrent requests, and its prompts.

    A closed loop is a load test with a fixed number of concurrent requests. The loops run one after the other. The
    loop in the middle has ``at_once`` concurrent requests. The first loop and the last loop have 1 concurrent request.
    If ``at_once`` is above 3, the loops just before and just after the middle have the rounded square root of
    ``at_once``. So with ``at_once=16``, the numbers are 1, 4, 16, 4, 1.

    The loop in the middle has a group of prompts for itself. Two other loops with the same number of concurrent
    requests share a group: each gets half. If this group is too small to halve, the first of the two loops gets all of
    it, and the second is left out.

    Raises:
        UserError: There are too few prompts.
    """
    middle = max(2, round(at_once**0.5))
    numbers = [1, at_once] if at_once <= 3 else [1, middle, at_once]
    alone = max(4, len(prompts) // 10)
    rest = prompts[alone:]
    loops = [(1, prompts[:alone])]
    if len(numbers) == 3:
        cut = max(2 * middle + 1, len(rest) // 3)
        loops.append((middle, rest[:cut]))
        rest = rest[cut:]
    if len(rest) < 2 * at_once + 1:
        raise UserError(
            f"{len(prompts)} prompts are too few for {at_once} at once: give at least {3 * at_once + 20}, or fewer at "
            "once (--at-once)"
        )
    # Each number of concurrent requests but the highest is measured before and after the highest one. So a machine that
    # becomes slower meanwhile affects all numbers.
    before, after = [], []
    for number, texts in loops:
        half = len(texts) // 2
        if half < 2 * (2 * number + 1):
            half = len(texts)
        before.append((number, texts[:half]))
        after.append((number, texts[half:]))
    return [*before, (at_once, rest), *(loop for loop in reversed(after) if loop[1])]
