"""``python -m scripts.compatibility_tools``."""

import sys

from scripts.compatibility_tools.cli import main

sys.exit(main())
