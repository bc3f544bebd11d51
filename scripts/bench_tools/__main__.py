"""``python -m bench_tools``; as first argument ``xa`` (distributed transactions) or ``stages``, with extras of their own."""

import sys

if sys.argv[1:2] == ["xa"]:
    from bench_tools.xa.cli import main as xa_main

    sys.exit(xa_main(sys.argv[2:]))

if sys.argv[1:2] == ["stages"]:
    from bench_tools.stages.cli import main as stages_main

    sys.exit(stages_main(sys.argv[2:]))

from bench_tools.cli import main

sys.exit(main())
