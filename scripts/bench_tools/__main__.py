"""``python -m bench_tools``."""

import sys

from bench_tools.cli import main

sys.exit(main())
