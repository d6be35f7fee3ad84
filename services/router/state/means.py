"""What one partition's requests may use for further attempts. Pure."""

from dataclasses import dataclass

from services.router.state.breaker import Breaker
from services.router.state.budget import SpendTracker


@dataclass(frozen=True, slots=True)
class Means:
    """The budgets of further attempts, and the health of the self-hosted engines.

    Attributes:
        cloud: The fallbacks to the cloud.
        retries: The further attempts on the self-hosted engines.
        breaker: While it is not closed, the cloud is preferred to the self-hosted engines.
    """

    cloud: SpendTracker
    retries: SpendTracker
    breaker: Breaker

    @property
    def prefer_cloud(self) -> bool:
        """Return whether the self-hosted engines were late or failed too often of late."""
        return self.breaker.state != "closed"

    def release(self, request_id: str) -> None:
        """Drop the reservations of a request."""
        self.cloud.release(request_id)
        self.retries.release(request_id)
