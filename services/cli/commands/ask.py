"""``railbus ask``: send a prompt and print the answer as it arrives."""

import argparse
import os
import sys
from typing import Final, get_args

from schemas.requests import DeliveryMode, Fallback
from services.cli.client.chat_request import ChatRequest
from services.cli.client.edge_client import API_KEY_VARIABLE, EdgeAddress, ask_edge
from services.cli.client.log_client import ask_log
from services.cli.common import (
    add_kafka_option,
    bus_settings,
    edge_url,
    number,
    run_coroutine,
    text,
    whole_number,
)
from services.cli.show.answer_printer import AnswerPrinter, print_answer
from services.runtime.errors import UserError
from services.runtime.settings import is_utf8

MAX_STDIN_CHARS: Final = 1_048_576
"""Maximum number of characters that are read from standard input as the prompt."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prompt", type=text, help="the prompt; - reads it from standard input")
    parser.add_argument("--system", type=text, help="system message before the prompt")
    parser.add_argument("--model", type=text, help="model that answers (default: the model that is served)")
    parser.add_argument("--max-tokens", type=whole_number, help="maximum number of tokens of the answer")
    parser.add_argument("--temperature", type=number, help="sampling temperature; 0 is greedy")
    parser.add_argument("--seed", type=whole_number, help="sampling seed")
    parser.add_argument(
        "--delivery", choices=get_args(DeliveryMode), help="how much text may be shown before it is checked"
    )
    parser.add_argument(
        "--fallback",
        choices=get_args(Fallback),
        help="if the first token is late: ask the cloud instead (cancel), ask the cloud too (race), or do not (off)",
    )
    parser.add_argument(
        "--class",
        dest="service_class",
        type=text,
        metavar="NAME",
        help="class of the request: chat, voice, batch, or one that the policy adds",
    )
    parser.add_argument(
        "--ttft-ms", type=whole_number, help="deadline of the first token, in ms after the request is received"
    )
    parser.add_argument("--stall-ms", type=whole_number, help="maximum pause between two chunks of the answer, in ms")
    parser.add_argument(
        "--total-ms", type=whole_number, help="deadline of the whole answer, in ms after the request is received"
    )
    parser.add_argument(
        "--json", action="store_true", help="print each op (instruction to the client) as one JSON line"
    )
    parser.add_argument(
        "--via",
        choices=("edge", "kafka"),
        default="edge",
        help="send the request to the edge, or write it to Kafka (default: %(default)s)",
    )
    parser.add_argument(
        "--url",
        help=f"address of the edge (default: that of the running `railbus up`, else http://127.0.0.1:8080); its API key"
        f" is read from ${API_KEY_VARIABLE}",
    )
    add_kafka_option(parser)


def run(args: argparse.Namespace) -> int:
    """Return 0 if the answer completed, 2 for an invalid request, 3 if the answer was denied or recalled, else 1."""
    request = ChatRequest(
        prompt=_prompt(args.prompt), system=args.system, model=args.model, max_tokens=args.max_tokens,
        temperature=args.temperature, seed=args.seed, delivery=args.delivery, fallback=args.fallback,
        ttft_ms=args.ttft_ms, stall_ms=args.stall_ms, total_ms=args.total_ms, service_class=args.service_class,
    )  # fmt: skip
    printer = AnswerPrinter(None) if args.json else AnswerPrinter.for_stdout()
    if args.via == "kafka" and args.service_class is not None:
        raise UserError("--class needs the edge, which knows the policy's classes: leave out --via kafka")
    if args.via == "kafka":
        answer = ask_log(request, bus_settings(args.kafka), printer.take)
    else:
        answer = ask_edge(request, EdgeAddress(edge_url(args.url), os.environ.get(API_KEY_VARIABLE)), printer.take)
    return run_coroutine(print_answer(answer, printer))


def _prompt(given: str) -> str:
    prompt = _read_stdin() if given == "-" else given
    if not prompt.strip():
        raise UserError("the prompt is empty: give the question, or - to read it from standard input")
    return prompt


def _read_stdin() -> str:
    try:
        prompt = sys.stdin.read(MAX_STDIN_CHARS)
    except UnicodeDecodeError:
        prompt = None
    if prompt is None or not is_utf8(prompt):  # which of the two happens depends on the locale
        raise UserError("standard input is not UTF-8 text")
    return prompt
