"""``python -m services.rails.rejudge --policy DIR --archive DIR``: judge archived prompts again, by another policy."""

import sys

from services.rails.rejudge.program import main

if __name__ == "__main__":
    sys.exit(main())
