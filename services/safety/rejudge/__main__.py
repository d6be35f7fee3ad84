"""Judge recorded traffic again: ``python -m services.safety.rejudge --policy DIR --archive DIR``."""

import sys

from services.safety.rejudge.program import main

if __name__ == "__main__":
    sys.exit(main())
