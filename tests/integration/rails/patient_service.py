"""``python -m tests.integration.rails.patient_service``: the rails service, with long timeouts for Redis.

With the usual timeouts, the service on a busy machine sometimes reports that Redis is unreachable although Redis works.
With long timeouts, a test can count just the reports that it causes when it stops Redis.
"""

import runpy

from services.rails import cache

if __name__ == "__main__":
    cache.WAIT_S = 20.0
    cache.CONNECT_S = 20.0
    runpy.run_module("services.rails", run_name="__main__", alter_sys=True)
