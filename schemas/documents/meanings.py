"""The meaning of each value of the events' enumerations."""

from collections.abc import Mapping
from typing import Final

MEANINGS: Final[Mapping[str, Mapping[str, str]]] = {
    "Lane": {
        "interactive": "A person waits. Goes before the batch.",
        "batch": "Runs when no interactive request waits. It has no deadline for its first token.",
    },
    "DeliveryMode": {
        "optimistic": "Text is shown at once and checked while it streams. What a check finds is taken back.",
        "windowed": "The newest text waits, by count or by age, until it is checked.",
        "gated": "Only checked text is shown. Nothing has to be taken back.",
    },
    "Fallback": {
        "cancel": "Attempt 1 is cancelled and the cloud is asked.",
        "race": "The cloud is asked as well. The attempt whose first chunk is first on the log answers.",
        "off": "The cloud is not asked. Retries on the self-hosted engines do not depend on this.",
    },
    "Egress": {
        "allowed": "The prompt may be sent to a cloud model.",
        "forbidden": "The prompt must not leave the premises: no attempt goes to the cloud.",
    },
    "VerdictDecision": {
        "allow": "The prompt passed. Answer text may be shown.",
        "deny": "The prompt is refused. The client is shown a refusal and the request ends.",
        "mask": "The prompt held personal data. The first answer is dropped and the masked prompt is asked.",
    },
    "RailResult": {
        "passed": "The rail found nothing.",
        "blocked": "The rail refuses the prompt.",
        "masked": "The rail replaced personal data in the prompt.",
        "broke": "The rail failed. That is not a pass: the policy says what follows.",
        "timeout": "The rail was not done by its deadline. That is not a pass either.",
        "cancelled": "Another rail had already refused the prompt.",
    },
    "FinishReason": {
        "stop": "The model ended its answer, or reached a stop string.",
        "length": "The answer reached `max_tokens`.",
    },
    "ErrorClass": {
        "unavailable": "The engine cannot be reached, or answered with a server error.",
        "overloaded": "The engine takes no more requests now.",
        "timeout": "The engine was too slow, or the worker ran out of the request's time.",
        "bad_request": "The request is at fault: its prompt is too long, its model is not served.",
        "auth": "The engine refused the worker's key or credentials.",
        "safety_block": "The cloud model's own filter refused.",
        "engine_dead": "The engine or its worker ended before the answer did. Another self-hosted attempt helps.",
        "cancelled": "A `Cancel` stopped the execution.",
        "internal": "A fault of the worker or the engine that fits none of the others.",
    },
    "Trigger": {
        "ttft": "The first token was not on the log by its deadline. A retry waits for the stall deadline as well.",
        "hard_error": "Every attempt so far has failed.",
        "stall": "The answer was silent for longer than its stall deadline.",
        "mask": "The policy wants the masked prompt to be answered.",
    },
    "CutoverMode": {
        "cancel": "The earlier attempt is dropped.",
        "race": "Both attempts may answer. The first chunk on the log decides.",
    },
    "RecallAction": {
        "stop": "The whole answer is withdrawn and replaced by one sentence.",
        "redact": "The span is replaced. The rest of the answer stays.",
    },
    "Outcome": {
        "completed": "The answer is complete.",
        "recalled": "The answer was withdrawn as a whole.",
        "denied": "The prompt was refused.",
        "failed": "No attempt gave an answer.",
        "cancelled": "The client had gone, or an operator stopped the request.",
        "expired": "The total deadline passed before the answer was complete.",
        "rejected": "The `Request` record could not be read.",
    },
    "Cause": {
        "answered": "The answer came to its own end.",
        "denied": "The verdict refused the prompt.",
        "recalled": "A recall withdrew the whole answer.",
        "deadline": "The total deadline has passed.",
        "client_gone": "The client was gone for longer than `RAILBUS_CLIENT_GRACE_MS`.",
        "no_verdict": "No verdict was on the log by the verdict deadline. Void if one stands before it.",
        "no_first_token": "No first token by its deadline, and no further attempt. Void if a chunk stands before it.",
        "stalled": "The answer stopped, and no further attempt. Void if a chunk after `seen_seq` stands before it.",
        "attempts_failed": "Every attempt failed. Void if a further attempt was opened.",
        "cannot_begin": "The next attempt cannot be started. Void if it has started.",
        "no_masked_prompt": "The policy wants a masked prompt, and the verdict holds none.",
        "too_many_open": "The router has as many open requests in that partition as `RAILBUS_ROUTER_MAX_OPEN` allows; "
        "of the batch lane as `RAILBUS_ROUTER_MAX_BATCH_OPEN` allows.",
        "unreadable": "The `Request` record could not be read. Void if an execution has started.",
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
        "http": "An HTTP response in one piece.",
        "client": "A program that reads the log itself.",
    },
    "DetachReason": {
        "complete": "Everything up to the request's end was sent.",
        "gone": "The client left.",
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
        "closed": "New requests try the self-hosted path.",
        "open": "New requests go to the cloud at once.",
        "half_open": "A few requests probe the self-hosted path; the others go to the cloud.",
    },
    "CancelReason": {
        "client_gone": "The client was gone for too long.",
        "denied": "The verdict refused the prompt.",
        "recalled": "The whole answer was withdrawn.",
        "cutover": "The next attempt has taken over.",
        "expired": "The total deadline has passed.",
        "operator": "An operator stopped it.",
        "lost_race": "The other attempt's chunk was first on the log.",
    },
    "BatchAction": {
        "pause": "No further line is submitted; open ones are answered.",
        "resume": "Lines are submitted again.",
        "cancel": "The job ends: open requests are cancelled, lines that were not submitted are not.",
    },
    "BatchOutcome": {
        "completed": "Every line has an answer or an error.",
        "failed": "No line was run: the input is at fault.",
        "cancelled": "Somebody ended the job. Lines without an answer have the error `batch_cancelled`.",
        "expired": "The job's time was over. Lines without an answer have the error `batch_expired`.",
    },
    "BadLines": {
        "report": "A line that is no request gets an error of its own. The others run.",
        "refuse": "One line that is no request ends the job before anything runs.",
    },
}
"""For each enumeration, by its name: what each of its values means."""
