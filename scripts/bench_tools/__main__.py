"""``python -m bench_tools``; ``xa`` as the first argument: of distributed transactions, which need the extra xa."""

import sys

if sys.argv[1:2] == ["xa"]:
    from bench_tools.xa.cli import main as xa_main

    sys.exit(xa_main(sys.argv[2:]))

from bench_tools.cli import main

sys.exit(main())
