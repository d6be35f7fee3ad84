"""The rails' settings."""

from dataclasses import dataclass, field
from pathlib import Path

from services.policy.source.files import DEFAULT_POLICY
from services.runtime.settings import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The rails service, which judges prompts.

    Attributes:
        policy: Folder of the policy.
        rails_room: Interactive requests judged at once, three quarters of them at most for one tenant. Tenants take
            turns. Of one tenant, twice as many may wait; further ones are denied at once. Batch requests are not: they
            wait on the log.
        rails_classifiers: Processes of the jailbreak classifier. Each reads one prompt at a time and takes one core and
            240 MB. With two or more, no tenant's flood has all of them; all but the first have a lower priority.
        rails_batch_classifiers: Processes of the classifier for batch requests. They start with the first such request,
            and run while nothing else wants the processor. Four batch requests are judged at once for each.
        rails_instance: A name that no other rails process has. A restart under the same name within the session timeout
            causes no rebalance.
        opa_url: ``http://HOST:PORT`` of an Open Policy Agent server that decides on admission. Not set: the policy's
            Rego runs in the process.
        decision_log: File to which one JSON line is appended for each decision of the policy's Rego in the process.
        redis_url: ``redis://HOST:PORT`` where results of rails are kept for equal prompts. Not set: they are kept in
            the process only.
    """

    policy: Path = field(default=DEFAULT_POLICY, metadata={"help": "folder of the policy"})
    rails_room: int = setting(256, "most requests evaluated at once", ge=1, le=100_000)
    rails_classifiers: int = setting(2, "processes of the classifier, one core and 240 MB each", ge=1, le=64)
    rails_batch_classifiers: int = setting(2, "the same for batch requests, once there are any", ge=1, le=64)
    rails_instance: str | None = setting(None, "name of this process, unique: a restart then causes no rebalance")
    opa_url: str | None = setting(None, "http://HOST:PORT of an OPA server; none = in the process")
    decision_log: Path | None = field(
        default=None, metadata={"help": "file for one line per decision of the Rego in the process, as OPA writes them"}
    )
    redis_url: str | None = setting(None, "redis://HOST:PORT where answers are cached", secret=True)
