"""``railbus ask``: a question from the terminal, its answer as it comes."""

import argparse
import os
import sys
from typing import Final, get_args

from schemas.requests import Fallback, Mode
from services.cli.answers import AnswerFailed
from services.cli.ask_edge import Edge, ask_edge
from services.cli.ask_log import ask_log
from services.cli.command import add_kafka, bus_settings, edge_url, run_coroutine
from services.cli.question import Question
from services.cli.result import FAILED, USAGE
from services.cli.screening import Screening
from services.runtime.errors import UserError

KEY_VARIABLE: Final = "RAILBUS_API_KEY"

MAX_STDIN: Final = 1_048_576
"""Characters read from standard input; what is longer cannot be a prompt."""


def add(parser: argparse.ArgumentParser) -> None:
    """Its flags."""
    parser.add_argument("prompt", help="the question; - reads it from standard input")
    parser.add_argument("--system", help="system message")
    parser.add_argument("--model", help="which model (default: whatever is served)")
    parser.add_argument("--max-tokens", type=int, help="longest answer")
    parser.add_argument("--temperature", type=float, help="0 is greedy")
    parser.add_argument("--seed", type=int, help="for repeatable sampling")
    parser.add_argument("--delivery", choices=get_args(Mode), help="how much is shown before it was checked")
    parser.add_argument("--fallback", choices=get_args(Fallback), help="what a missed first-token deadline does")
    parser.add_argument("--ttft-ms", type=int, help="deadline of the first token")
    parser.add_argument("--stall-ms", type=int, help="longest silence within the answer")
    parser.add_argument("--total-ms", type=int, help="deadline of the whole answer")
    parser.add_argument("--json", action="store_true", help="one op a line")
    parser.add_argument("--via", choices=("edge", "kafka"), default="edge", help="whom to ask (%(default)s)")
    parser.add_argument("--url", help=f"the edge (default: the tree running here); its key is read from {KEY_VARIABLE}")
    add_kafka(parser)


def run(args: argparse.Namespace) -> int:
    """Exit code 0 completed, 1 failed or expired, 3 denied or recalled, 2 the question was at fault."""
    question = Question(
        prompt=_prompt(args.prompt), system=args.system, model=args.model, max_tokens=args.max_tokens,
        temperature=args.temperature, seed=args.seed, delivery=args.delivery, fallback=args.fallback,
        ttft_ms=args.ttft_ms, stall_ms=args.stall_ms, total_ms=args.total_ms,
    )  # fmt: skip
    screening = Screening(None) if args.json else Screening.on_stdout()
    return run_coroutine(_ask(args, question, screening))


async def _ask(args: argparse.Namespace, question: Question, screening: Screening) -> int:
    try:
        if args.via == "kafka":
            await ask_log(question, bus_settings(args.kafka), screening.take)
        else:
            await ask_edge(question, Edge(edge_url(args.url), os.environ.get(KEY_VARIABLE)), screening.take)
    except AnswerFailed as error:
        screening.end()
        sys.stderr.write(f"railbus ask: {error}\n")
        return USAGE if error.usage else FAILED
    screening.end()
    sys.stderr.write(f"{screening.result.line()}\n")
    return screening.result.exit_code


def _prompt(given: str) -> str:
    text = sys.stdin.read(MAX_STDIN) if given == "-" else given
    if not text.strip():
        raise UserError("the prompt is empty: say what to ask, or - to read it from standard input")
    return text
