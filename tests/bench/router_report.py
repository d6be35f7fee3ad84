"""Make the output of ``tests.bench.router_bench``: percentiles, and for each measurement a row of RESULTS.md."""

from collections.abc import Iterable
from typing import Any


def percentiles(values: Iterable[float]) -> dict[str, float]:
    """Return p50, p99 and maximum, rounded to a tenth. Return an empty dictionary if there are no values."""
    ordered = sorted(values)
    if not ordered:
        return {}
    at = {"p50": 0.5, "p99": 0.99, "max": 1.0}
    return {name: round(ordered[min(int(len(ordered) * part), len(ordered) - 1)], 1) for name, part in at.items()}


def told(what: str, it: dict[str, Any]) -> tuple[str, str, bool]:
    """Return the requirement and the figures of a measurement as text, and whether the requirement is met.

    Args:
        what: Name of the measurement.
        it: The figures of the measurement.
    """
    once = it.get("requests") == it.get("closed") == it.get("closed_written") == it.get("accounts_written")
    match what:
        case "deadlines":
            cut, read = it["decided_late_ms"], it["read_late_ms"]
            figures = f"decided p50 / p99 {pair(cut)} ms late, read by another process {pair(read)} ms"
            return "deadline to `Cutover` on the log p99 <= 10 ms, 5,000 open", figures, read["p99"] <= 10
        case "losers":
            how, stop = it["how"], it["loser_cancelled_after_ms"]
            figures = (
                f"{how['one_voice']} of {it['requests']} one voice, {how.get('retractions', 0)} retractions,"
                f" {how['cutovers_void']} void cutovers, loser cancelled after p50 / p99 {pair(stop)} ms"
            )
            good = once and how["one_voice"] == it["requests"] and not how.get("retractions")
            return (
                "late losers: one voice, no retraction, loser cancelled within 50 ms",
                figures,
                good and stop["p99"] <= 50,
            )
        case "breaker":
            figures = (
                f"open {it['open_after_sick_s']} s after it fell silent, {it['late_ones_while_sick']} late ones since"
                f" (probes), first token p50 / p99 {pair(it['ttft_ms_while_open'])} ms while open, closed"
                f" {it['closed_after_healthy_s']} s after it was well"
            )
            return "breaker opens within 2 s, recovers by itself", figures, it["open_after_sick_s"] <= 2
        case "budget":
            share = it["cloud_share"]
            figures = f"{share:.2%} of {it['requests']} went to the cloud; the rest: {', '.join(it['reasons'])}"
            return "all sick for 30 s, 10 % may fall back: at most 11 %", figures, share <= 0.11 and once
        case "egress":
            figures = f"{it['sent']} of {it['may_leave']} that may leave, {it['sent_that_must_stay']} that must stay"
            return "10,000 requests: what must stay never leaves", figures, not it["sent_that_must_stay"]
        case _:
            late = it["past_total_deadline_ms"]
            figures = (
                f"{it['closed']} of {it['requests']} closed, {it['closed_written']} `Closed`, {it['accounts_written']}"
                f" `Account` written; {it['cloud_calls']} cloud calls, {it['cloud_calls_written']} written; closed"
                f" p99 / max {late['p99']} / {late['max']} ms past the total deadline"
            )
            if what == "kills":
                figures += f"; deciding again p50 / max {pair(it['killed_to_deciding_ms'], 'max')} ms after the kill"
                return "20 kills: closed once, by the deadline + 2 s", figures, once and late["max"] <= 2_000
            figures += f"; {it['cutovers_written']} `Cutover` written for {it['cutovers']} attempts"
            same = it["cloud_calls"] == it["cloud_calls_written"] and once
            return "two routers, a rebalance every 2 s: one effective `Cutover` and `Closed` each", figures, same


def pair(values: dict[str, float], tail: str = "p99") -> str:
    """Return ``values['p50']`` and ``values[tail]`` as text, with a slash between them."""
    return f"{values['p50']} / {values[tail]}"
