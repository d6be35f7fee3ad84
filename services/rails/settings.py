from dataclasses import dataclass
from pathlib import Path

from services.policy.source.files import DEFAULT_POLICY
from services.runtime.settings import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The rails service, which judges prompts.

    Attributes:
        policy: Folder of the policy.
        rails_room: Maximum number of interactive requests that are judged at the same time. For one tenant, the
            maximum is three quarters of this number, and twice this number may wait. For example, 256 means that one
            tenant may have 192 requests judged and 512 waiting. Further requests of the tenant are denied.
        rails_classifiers: Number of processes of the jailbreak classifier. Each reads one prompt at a time, and needs
            one core and 240 MB of memory. If there are two or more processes, and other tenants used them in the last
            ten seconds, one tenant cannot occupy all of them. The first process has a higher CPU priority than the
            others.
        rails_batch_classifiers: Number of processes of the jailbreak classifier for batch requests. They start at the
            first batch request, and run only if nothing else needs the CPU. Up to four batch requests per process are
            judged at the same time, so that a process is seldom idle. While it reads one prompt, the other requests
            wait for it or are judged by other rails.
        rails_instance: Id for static group membership. No other rails process may have the same id. If a process
            restarts with its id within the session timeout, there is no rebalance.
        opa_url: ``http://HOST:PORT`` of an Open Policy Agent server that decides on admission. If it is not set, the
            policy's Rego runs in the rails process.
        decision_log: File to which one JSON line is appended for each decision of the Rego that runs in the rails
            process.
        redis_url: ``redis://HOST:PORT`` of a Redis server in which answers of rails are cached. They are used again for
            requests with the same prompt. If it is not set, only scores of the jailbreak classifier are cached, in the
            rails process.
    """

    policy: Path = setting(DEFAULT_POLICY, "folder of the policy")
    rails_room: int = setting(
        256, "maximum number of interactive requests that are judged at the same time", ge=1, le=100_000
    )
    rails_classifiers: int = setting(
        2, "number of processes of the jailbreak classifier, each with one core and 240 MB of memory", ge=1, le=64
    )
    rails_batch_classifiers: int = setting(
        2,
        "number of processes of the jailbreak classifier for batch requests, started at the first of them",
        ge=1,
        le=64,
    )
    rails_instance: str | None = setting(
        None, "unique name of this process, so that a quick restart causes no rebalance"
    )
    opa_url: str | None = setting(
        None, "http://HOST:PORT of an Open Policy Agent server; if not set, the policy's Rego runs in the process"
    )
    decision_log: Path | None = setting(
        None, "file for decisions of Rego that runs in the process, one JSON line each, as in OPA's decision log"
    )
    redis_url: str | None = setting(
        None, "redis://HOST:PORT of the Redis in which results of rails are cached", secret=True
    )
