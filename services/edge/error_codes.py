"""The error codes of the edge: what each code means, and what can be done about it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class ErrorDescription:
    statuses: tuple[int, ...]
    meaning: str
    remedy: str


ERROR_CODES: Final[Mapping[str, ErrorDescription]] = {
    "bad_request": ErrorDescription(
        (400,), "The request is not valid HTTP, or the engine refused it, for example because the prompt is too long.",
        "Read the message: it says what is wrong.",
    ),
    "batch_has_ended": ErrorDescription((409,), "The batch has ended.", "Nothing is left to cancel."),
    "batch_not_found": ErrorDescription((404,), "The tenant has no such batch.", "See `GET /v1/batches`."),
    "batches_off": ErrorDescription(
        (503,), "Files and batches are off on this edge, or their folder cannot be written to.",
        "The operator sets `RAILBUS_BATCH_DIR` to the same folder for edge and batch service.",
    ),
    "busy": ErrorDescription(
        (429, 503), "The tenant (429) or all clients (503) resume too many streams at the same time, or too many "
        "clients wait for `/ledger` (503).",
        "Wait as long as `Retry-After` says, then try again.",
    ),
    "cancelled": ErrorDescription(
        (499,), "The request was stopped: its client was gone for too long, or an operator stopped it.",
        "Ask again if the answer is still wanted.",
    ),
    "class_not_allowed": ErrorDescription(
        (403,), "The policy does not let this tenant use the requested class, or not with this model.",
        "Leave the class out, or ask the policy's owner to allow it.",
    ),
    "engine_auth": ErrorDescription(
        (502,), "The upstream server or Google refused the key or the credentials of the worker.",
        "The operator corrects `RAILBUS_UPSTREAM_KEY`, or the Google credentials of the Vertex AI worker.",
    ),
    "engine_dead": ErrorDescription(
        (502,), "The engine or its worker died before the answer was complete.",
        "Ask again. `railbus up` or the container runtime starts a new generator.",
    ),
    "engine_overloaded": ErrorDescription(
        (503,), "The engine takes no more requests now.",
        "Wait as long as `Retry-After` says, then try again. The operator can add generators.",
    ),
    "engine_timeout": ErrorDescription(
        (504,), "The engine did not answer in time.", "Try again, or allow more time in `railbus.deadlines`.",
    ),
    "engine_unavailable": ErrorDescription(
        (503,), "The engine cannot be reached, or answered with an error of its own.",
        "Wait as long as `Retry-After` says, then try again. The operator looks at the generator's log.",
    ),
    "expired": ErrorDescription(
        (504,), "The answer was not complete at the request's total deadline.",
        "Try again, with a larger `railbus.deadlines.total_ms` or a smaller `max_tokens`.",
    ),
    "failed": ErrorDescription(
        (502,), "The request could not be answered, and no engine reported an error. For example, the rails service "
        "gave no verdict in time.",
        "Read the message, and try again.",
    ),
    "file_in_use": ErrorDescription(
        (409,), "A batch that has not ended needs the file.", "Cancel the batch, or wait for its end.",
    ),
    "file_not_found": ErrorDescription((404,), "The tenant has no such file.", "See `GET /v1/files`."),
    "host_not_allowed": ErrorDescription(
        (403,), "The edge has no API keys, so it answers to loopback host names only.",
        "Use `127.0.0.1`, or set `RAILBUS_API_KEYS_FILE`.",
    ),
    "idempotency_key_in_use": ErrorDescription(
        (409,), "The first request with this `Idempotency-Key` is not on the log yet.", "Try again a second later.",
    ),
    "idempotency_key_reused": ErrorDescription(
        (422,), "The `Idempotency-Key` was used before, with another body.", "Use a new key for a new request.",
    ),
    "internal": ErrorDescription(
        (500,), "A fault of the server or of the engine.", "Report it. The service's log has the traceback.",
    ),
    "invalid_api_key": ErrorDescription(
        (401,), "The API key is not in the edge's file.", "Use a key that is in the file.",
    ),
    "invalid_body": ErrorDescription(
        (400,), "The body could not be read, for example because a chunk of it is malformed.", "Correct the client.",
    ),
    "invalid_encoding": ErrorDescription(
        (400,), "The body is not compressed as `Content-Encoding` says, or is cut off.",
        "Correct the client, or send the body uncompressed, without `Content-Encoding`.",
    ),
    "invalid_header": ErrorDescription(
        (400, 417), "A header is malformed; `param` names it.", "Correct the header.",
    ),
    "invalid_json": ErrorDescription((400,), "The body is not a JSON object.", "Send one JSON object."),
    "invalid_position": ErrorDescription(
        (400,), "`Last-Event-ID` or `after` does not have the form of an op's id, `partition:offset:index`.",
        "Send the `id` of the last op that was received.",
    ),
    "invalid_request_id": ErrorDescription(
        (400,), "The request id in the path is not a UUIDv7 in lower case.", "Use the id that the server gave.",
    ),
    "invalid_value": ErrorDescription(
        (400,), "A field has a value that is not allowed; `param` names the field.", "Correct the field.",
    ),
    "log_unavailable": ErrorDescription(
        (503,), "Kafka did not accept or acknowledge the request or batch, or the log could not be read in time.",
        "Wait as long as `Retry-After` says, then try again with the same `Idempotency-Key`, so that the request is "
        "not answered twice. A batch may have been created nevertheless: look at `GET /v1/batches` before you create "
        "it again. The operator looks at the broker.",
    ),
    "method_not_allowed": ErrorDescription(
        (405,), "The address does not support this HTTP method.", "Use a method that the header `Allow` lists.",
    ),
    "missing_api_key": ErrorDescription(
        (401,), "The edge requires an API key, and the request has none.",
        "Send `Authorization: Bearer KEY`; on a websocket, the message `hello` with `key`.",
    ),
    "model_not_found": ErrorDescription(
        (404,), "The engine does not serve the model that was asked for.",
        "Ask for `default`, or for a model that `GET /v1/models` lists.",
    ),
    "not_a_websocket": ErrorDescription(
        (400,), "The address serves only websockets, and the request is not a websocket handshake (version 13).",
        "Use a websocket client.",
    ),
    "not_a_form": ErrorDescription(
        (415,), "The file was not sent as a form.", "Send `multipart/form-data` with `purpose` and `file`.",
    ),
    "not_found": ErrorDescription(
        (404,), "There is no such address.", "Correct the address. The HTTP reference lists all endpoints.",
    ),
    "not_json": ErrorDescription((415,), "The body is not declared as JSON.", "Send `Content-Type: application/json`."),
    "newer_version": ErrorDescription(
        (503,), "A newer service has written a verdict, recall or cutover that this edge cannot read. The edge shows "
        "nothing more of the answer, because text may have been taken back.",
        "Hide the text that was shown, and resume at another edge. The operator upgrades this edge.",
    ),
    "not_ready": ErrorDescription(
        (503,), "The edge has no partition yet: it has just started, or its consumer group is rebalancing.",
        "Wait as long as `Retry-After` says, then try again.",
    ),
    "metrics_not_allowed": ErrorDescription(
        (403,), "The key's tenant may not read `/metrics`.",
        "The operator adds the tenant to `RAILBUS_METRICS_TENANTS`.",
    ),
    "origin_not_allowed": ErrorDescription(
        (403,), "A web page of another origin may not use this edge.",
        "The operator adds the origin to `RAILBUS_ALLOWED_ORIGINS`.",
    ),
    "rate_limit_exceeded": ErrorDescription(
        (429,), "The tenant has reached its limit of requests, tokens or resumed streams per minute.",
        "Wait as long as `Retry-After` says, then try again. The operator can raise `RAILBUS_RATE_PER_MINUTE`, "
        "`RAILBUS_TOKENS_PER_MINUTE` or `RAILBUS_RESUMES_PER_MINUTE`.",
    ),
    "rejected": ErrorDescription(
        (400,), "The router could not read the `Request` record on the log. Either an application has written an "
        "invalid record to Kafka itself, or the writer of the record, such as this edge, is newer than the router.",
        "`railbus dead list` shows the reason. Correct the record and send it under a new id, or upgrade the routers "
        "and ask again.",
    ),
    "request_not_found": ErrorDescription(
        (404,), "The tenant has no request with this id, or the request is older than `RAILBUS_RESUME_MS` allows. For "
        "a `cancel` on a websocket: the connection has no open stream of this request.",
        "Check the id, or send the prompt as a new request.",
    ),
    "request_timeout": ErrorDescription(
        (408,), "The head or the body of a request, or a websocket's first message, did not arrive in time.",
        "Connect again and send the request or message at once. The operator can raise `RAILBUS_REQUEST_TIMEOUT_MS` or "
        "`RAILBUS_HELLO_TIMEOUT_MS`.",
    ),
    "request_too_large": ErrorDescription(
        (413,), "The body is larger than 1 MiB, the request's event would be larger than 1,000,000 bytes, or an "
        "uploaded file is larger than `RAILBUS_BATCH_FILE_MB`.",
        "Send less text, or a smaller file.",
    ),
    "restarted": ErrorDescription(
        (502,), "Another attempt took over after text was sent, and an OpenAI-style stream cannot take text back.",
        'Ask again, or send `"railbus": {"restart": "marker"}`, or read ops instead of chat chunks.',
    ),
    "safety_block": ErrorDescription(
        (400,), "A safety filter of Vertex AI or of the upstream server refused the prompt or the answer.",
        "Change the prompt.",
    ),
    "server_stopping": ErrorDescription(
        (503,), "The edge is being stopped.",
        "Resume the stream at the id of the last op that was received, at any edge.",
    ),
    "slow_client": ErrorDescription(
        (503,), "The client read too slowly: more than `RAILBUS_CLIENT_BUFFER_BYTES` were waiting for it.",
        "Resume the stream at the id of the last op that was received.",
    ),
    "string_above_max_length": ErrorDescription(
        (400,), "A text is too long, such as a message of more than 262,144 characters.", "Send less text.",
    ),
    "too_many_batches": ErrorDescription(
        (429,), "The tenant has too many batches that have not ended.", "Wait until a batch has ended, or cancel one.",
    ),
    "too_many_files": ErrorDescription((429,), "The tenant has too many files.", "Delete files."),
    "too_many_connections": ErrorDescription(
        (429, 503), "The client's address (429) or the edge (503) has the maximum number of open connections, so this "
        "connection was closed or refused.",
        "Close idle connections. The operator can raise `RAILBUS_MAX_ADDRESS_CONNECTIONS` or "
        "`RAILBUS_MAX_CONNECTIONS`.",
    ),
    "too_many_bytes": ErrorDescription(
        (503,), "The request bodies and messages of all clients together need more memory than "
        "`RAILBUS_BODY_MEMORY_MB` allows.",
        "Wait as long as `Retry-After` says, then send the body again, without pauses. The operator can raise "
        "`RAILBUS_BODY_MEMORY_MB`.",
    ),
    "too_many_streams": ErrorDescription(
        (429, 503), "The websocket or the tenant (429), or the edge (503), has the maximum number of open streams. A "
        "batch request waits for a free stream of the edge, and gets 503 only if too many batch requests wait already.",
        "Wait until a stream has ended. The operator can raise `RAILBUS_MAX_SOCKET_STREAMS`, "
        "`RAILBUS_MAX_TENANT_STREAMS` or `RAILBUS_MAX_STREAMS`.",
    ),
    "unknown_class": ErrorDescription(
        (400,), "The policy has no class of requests of this name.", "Use one of the classes that the message names.",
    ),
    "unknown_parameter": ErrorDescription(
        (400,), "The object `railbus` has an unknown field. Unknown fields in this object are not ignored.",
        "Correct the name of the field.",
    ),
    "unknown_position": ErrorDescription(
        (400,), "This request has no op at the position that was sent.", "Send the `id` of an op of this request.",
    ),
    "unsupported_encoding": ErrorDescription(
        (415,), "The body's `Content-Encoding` is not supported.",
        "Send the body with `gzip`, with `deflate` or uncompressed.",
    ),
    "unsupported_parameter": ErrorDescription(
        (400,), "The request has a parameter that would change the answer and is not supported, such as `tools`.",
        "Leave the parameter out.",
    ),
}  # fmt: skip
"""Every error code of the edge, with its description."""
