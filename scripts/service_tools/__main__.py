"""``python -m service_tools``."""

import sys

from service_tools.cli import main

sys.exit(main())
