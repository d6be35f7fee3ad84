"""Compute the account of a request from the request's events, as the router does."""

from schemas.requests import Request
from schemas.side_events import Account
from schemas.stream import StreamEvent
from services.router.config import RouterConfig
from services.router.decide.effects import account_of
from services.router.state.request import EventContext, RequestState
from services.stream.latency import LogEvent


def router_account(request_id: str, log: list[LogEvent], tenant: str = "acme") -> Account | None:
    """Return the account that the router would write for the events in ``log``; None if the request is not closed."""
    state = RequestState(request_id, tenant, log[0].appended_ms * 1_000, RouterConfig())
    for appended_ms, event in log:
        at_us = appended_ms * 1_000
        if isinstance(event, Request):
            if state.on_request(event, None, at_us, appended_ms):
                state.request = event
        elif isinstance(event, StreamEvent):
            state.on_stream(event, at_us, appended_ms)
    closed = state.screen.closed
    if closed is None:
        return None
    return account_of(state, closed, EventContext(log[-1].appended_ms * 1_000, "router/1"))
