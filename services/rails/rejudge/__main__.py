"""Run the program: ``python -m services.rails.rejudge --policy DIR --archive DIR``."""

import sys

from services.rails.rejudge.program import main

if __name__ == "__main__":
    sys.exit(main())
