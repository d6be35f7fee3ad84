"""Encode one line of a result file, in the format of OpenAI's Batch API."""

from dataclasses import dataclass
from typing import Any

import orjson

from schemas.stream import FinishReason, Usage
from services.jobs.ids import created_s, line_request_id


@dataclass(frozen=True, slots=True, kw_only=True)
class LineAnswer:
    """The answer to one line of a job. ``text`` is the text after all redactions."""

    text: str
    model: str
    finish_reason: FinishReason
    usage: Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class LineError:
    """The reason why a line of a job has no answer.

    Attributes:
        code: The reason, as a code for programs.
        message: The reason in one sentence.
        param: Path of the invalid field in the line; None if no field is invalid.
    """

    code: str
    message: str
    param: str | None = None


LineResult = LineAnswer | LineError


def result_line(
    batch_id: str, place: int, attempt: int, number: int, custom_id: str | None, result: LineResult
) -> bytes:
    """Return one line of a result file.

    ``place`` is the position of the input line in the order of submission, from 0. ``number`` is its line number in the
    input file, from 1.
    """
    request_id = line_request_id(batch_id, place, attempt)
    response, error = None, None
    if isinstance(result, LineAnswer):
        response = {"status_code": 200, "request_id": request_id, "body": _completion(batch_id, request_id, result)}
    else:
        error = {"code": result.code, "message": result.message, "param": result.param, "line": number}
    named = {"id": f"batch_req_{request_id.replace('-', '')}", "custom_id": custom_id}
    return orjson.dumps({**named, "response": response, "error": error}) + b"\n"


def _completion(batch_id: str, request_id: str, answer: LineAnswer) -> dict[str, Any]:
    usage = answer.usage
    return {
        "id": f"chatcmpl-{request_id}",
        "object": "chat.completion",
        "created": created_s(batch_id),
        "model": answer.model,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": answer.text, "refusal": None},
                "finish_reason": answer.finish_reason,
                "logprobs": None,
            }
        ],
        "usage": {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        },
    }
