"""``python -m bench_tools``; first argument ``xa``, ``stages`` (both with extras of their own) or ``carry``: other benches."""

import sys

if sys.argv[1:2] == ["xa"]:
    from bench_tools.xa.cli import main as xa_main

    sys.exit(xa_main(sys.argv[2:]))

if sys.argv[1:2] == ["stages"]:
    from bench_tools.stages.cli import main as stages_main

    sys.exit(stages_main(sys.argv[2:]))

if sys.argv[1:2] == ["carry"]:
    from bench_tools.carry import main as carry_main

    sys.exit(carry_main(sys.argv[2:]))

from bench_tools.cli import main

sys.exit(main())
