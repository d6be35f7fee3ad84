"""The meaning of each value of the events' enumerations."""

from collections.abc import Mapping
from typing import Final

MEANINGS: Final[Mapping[str, Mapping[str, str]]] = {
    "Lane": {
        "interactive": "A person waits for the answer. Interactive requests are served before batch requests.",
        "batch": "The request runs when no interactive request waits. There is no deadline for its first token.",
    },
    "DeliveryMode": {
        "optimistic": "Text is shown at once and checked while it streams. What a check finds is taken back.",
        "windowed": "The newest text is hidden until it is checked, or until it is older than `hold_ms` and at least "
        "`hold_tokens` tokens follow it.",
        "gated": "Only checked text is shown. Nothing has to be taken back.",
    },
    "Fallback": {
        "cancel": "If the first token is late, attempt 1 is cancelled and the cloud is asked.",
        "race": "If the first token is late, the cloud is asked as well. The attempt whose first chunk is first on the "
        "log answers.",
        "off": "The cloud is not asked. Retries on the self-hosted engines do not depend on this.",
    },
    "Egress": {
        "allowed": "The prompt may be sent to a cloud model.",
        "forbidden": "The prompt must not leave the premises: no attempt goes to the cloud.",
    },
    "VerdictDecision": {
        "allow": "The prompt passed. Answer text may be shown.",
        "deny": "The prompt is refused. The client is shown a refusal and the request ends.",
        "mask": "The prompt contained personal data. The first answer is dropped, and the masked prompt is answered.",
    },
    "RailResult": {
        "passed": "The rail found nothing.",
        "blocked": "The rail refuses the prompt.",
        "masked": "The rail replaced personal data in the prompt.",
        "broke": "The rail failed. This does not count as passed: the policy says what follows.",
        "timeout": "The rail missed its deadline. This does not count as passed: the policy says what follows.",
        "cancelled": "Another rail had already refused the prompt.",
    },
    "FinishReason": {
        "stop": "The model ended its answer, or reached a stop string.",
        "length": "The answer reached `max_tokens`.",
    },
    "ErrorClass": {
        "unavailable": "The engine cannot be reached, or answered with a server error.",
        "overloaded": "The engine takes no more requests now.",
        "timeout": "The engine was too slow, or the request's total deadline passed in the worker.",
        "bad_request": "The request is wrong, for example because its prompt is too long or its model is not served.",
        "auth": "The engine refused the worker's key or credentials.",
        "safety_block": "A safety filter of Vertex AI or of the upstream server refused the prompt or the answer.",
        "engine_dead": "The engine or its worker died before the answer was complete. A retry on the self-hosted "
        "engines can succeed.",
        "cancelled": "A `Cancel` event stopped the run.",
        "internal": "A fault of the worker or the engine that fits none of the other classes.",
    },
    "Trigger": {
        "ttft": "The first token was not on the log by its deadline. A retry on the self-hosted engines starts "
        "`stall_ms` later than that.",
        "hard_error": "Every attempt so far has failed.",
        "stall": "No new chunk of the answer came for longer than the stall deadline.",
        "mask": "The policy wants the masked prompt to be answered.",
    },
    "CutoverMode": {
        "cancel": "The earlier attempt is dropped.",
        "race": "Both attempts may answer. The first chunk on the log decides.",
    },
    "RecallAction": {
        "stop": "The whole answer is withdrawn and replaced by one sentence.",
        "redact": "A span of the answer is replaced. The rest of the answer stays.",
    },
    "Outcome": {
        "completed": "The answer is complete.",
        "recalled": "The answer was withdrawn as a whole.",
        "denied": "The prompt was refused.",
        "failed": "The request could not be answered.",
        "cancelled": "The client was gone for too long, or an operator stopped the request.",
        "expired": "The total deadline passed before the answer was complete.",
        "rejected": "The `Request` record could not be read.",
    },
    "Cause": {
        "answered": "The answer is complete.",
        "denied": "The verdict refused the prompt.",
        "recalled": "A recall withdrew the whole answer.",
        "deadline": "The total deadline has passed.",
        "client_gone": "The client was gone for longer than `RAILBUS_CLIENT_GRACE_MS`.",
        "no_verdict": "No verdict was on the log by the verdict deadline. Void if a verdict is earlier on the log.",
        "no_first_token": "The first token was not on the log by its deadline, and no further attempt was possible. "
        "Void if a chunk is earlier on the log.",
        "stalled": "No new chunk came for too long, and no further attempt was possible. Void if a chunk after "
        "`seen_seq` is earlier on the log.",
        "attempts_failed": "Every attempt failed. Void if a further attempt is earlier on the log.",
        "cannot_begin": "The next attempt cannot be started. Void if its start is earlier on the log.",
        "no_masked_prompt": "The policy wants a masked prompt, but the verdict contains none.",
        "too_many_open": "The partition had the maximum number of open requests: `RAILBUS_ROUTER_MAX_OPEN` in the "
        "interactive lane, `RAILBUS_ROUTER_MAX_BATCH_OPEN` in the batch lane.",
        "unreadable": "The `Request` record could not be read. Void if the start of a run is earlier on the log.",
    },
    "InputGate": {
        "hold": "No text is shown before the verdict.",
        "off": "There is no rails service, so text may be shown without a verdict.",
    },
    "OutputCheck": {
        "on": "A safety service checks the answer.",
        "off": "There is no safety service.",
    },
    "Transport": {
        "websocket": "A websocket at the edge.",
        "sse": "Server-sent events at the edge.",
        "http": "One HTTP response with the whole answer.",
        "client": "A program that reads the log itself.",
    },
    "DetachReason": {
        "complete": "Everything up to the request's end was sent.",
        "gone": "The client disconnected or ended the delivery.",
        "slow": "The client read too slowly and was disconnected.",
        "shutdown": "The edge was stopped.",
        "error": "The stream ended with an error.",
    },
    "Route": {
        "none": "Nothing answered.",
        "self_hosted": "A self-hosted engine answered.",
        "cloud": "The cloud answered.",
    },
    "BreakerState": {
        "closed": "New requests go to the self-hosted engines.",
        "open": "New requests go to the cloud at once.",
        "half_open": "A few requests test the self-hosted engines. The others go to the cloud.",
    },
    "CancelReason": {
        "client_gone": "The client was gone for too long.",
        "denied": "The verdict refused the prompt.",
        "recalled": "The whole answer was withdrawn.",
        "cutover": "The next attempt has taken over.",
        "expired": "The total deadline has passed, or the request was closed as `failed` or `rejected`.",
        "operator": "An operator stopped the request, or its batch job was cancelled or expired.",
        "lost_race": "The other attempt in the race had the first chunk on the log.",
    },
    "BatchAction": {
        "pause": "No further line is submitted. Requests that are open are still answered.",
        "resume": "Lines are submitted again.",
        "cancel": "The job ends: open requests are cancelled, and no further line is submitted.",
    },
    "BatchOutcome": {
        "completed": "Every line has an answer or an error.",
        "failed": "No line was run: the input is at fault.",
        "cancelled": "The job was cancelled. Lines without an answer have the error `batch_cancelled`.",
        "expired": "The job's time limit has passed. Lines without an answer have the error `batch_expired`.",
    },
    "BadLines": {
        "report": "A line that is not a valid request gets an error. The other lines run.",
        "refuse": "One line that is not a valid request ends the job before any line runs.",
    },
}
"""For each enumeration, by its name: what each of its values means."""
