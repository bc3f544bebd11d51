"""``python -m compose_tools``."""

import sys

from compose_tools.check import main

sys.exit(main())
