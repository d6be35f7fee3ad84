"""Test which error each HTTP status of Vertex AI means, and that a retry waits as long as the server asks."""

import pytest

from services.vertex.errors import FIRST_WAIT_US, MAX_TRIES, retry_wait_us, status_error, status_meaning

LATER = 10**12


@pytest.mark.parametrize(
    ("status", "error_class", "retryable", "again"),
    [
        (400, "bad_request", False, False),
        (401, "auth", False, False),
        (403, "auth", False, False),
        (404, "bad_request", False, False),
        (408, "timeout", True, False),
        (429, "overloaded", True, True),
        (500, "internal", True, False),
        (503, "unavailable", True, True),
        (504, "timeout", True, False),
    ],
)
def test_statuses_mean_what_google_says(status: int, error_class: str, retryable: bool, again: bool) -> None:
    assert status_meaning(status) == (error_class, retryable, again)
    assert str(status) in str(status_error(status))


def test_hints_name_the_remedy() -> None:
    assert "roles/aiplatform.user" in str(status_error(403))
    assert "RAILBUS_VERTEX_MODEL" in str(status_error(404))


def test_wait_is_what_the_server_asks_for() -> None:
    assert retry_wait_us(1, {"Retry-After": "3"}, None, 0, LATER) == 3_000_000
    details = {"error": {"details": [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "0.5s"}]}}
    assert retry_wait_us(1, {}, details, 0, LATER) == 500_000


@pytest.mark.parametrize("details", [None, [], {}, {"error": {"details": "x"}}, {"error": {"details": [{}, 7]}}])
def test_wait_doubles_when_the_server_asks_for_nothing(details: object) -> None:
    waits = [retry_wait_us(tries, {"Retry-After": "soon"}, details, 0, LATER) for tries in range(1, MAX_TRIES)]
    assert waits == [FIRST_WAIT_US << n for n in range(MAX_TRIES - 1)]


def test_there_is_no_next_try_when_time_or_tries_are_up() -> None:
    assert retry_wait_us(MAX_TRIES, {}, None, 0, LATER) is None
    assert retry_wait_us(1, {"Retry-After": "3"}, None, 0, 3_000_000) is None
