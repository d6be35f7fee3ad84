"""``python -m tests.integration.rails.patient_service``: the rails process, for which Redis may take its time.

On a busy machine Redis takes longer now and then than a prompt is worth waiting for, and the process says that it is
unreachable. A test that counts how often it says so stops Redis itself.
"""

import runpy

from services.rails import cache

if __name__ == "__main__":
    cache.WAIT_S = 20.0
    cache.CONNECT_S = 20.0
    runpy.run_module("services.rails", run_name="__main__", alter_sys=True)
