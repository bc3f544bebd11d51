"""``understudy serve`` on a disk that others have filled but for a MiB, whatever the disk really is.

python little_space.py CONFIG
"""

from __future__ import annotations

import sys
from pathlib import Path

from understudy.broker.server.files.file_storage import FileStorage
from understudy.broker.server.process.run import serve

FREE_BYTES = 1 << 20


def main() -> int:
    FileStorage.free_bytes = lambda _: FREE_BYTES  # type: ignore[assignment,method-assign]
    return serve(Path(sys.argv[1]))


if __name__ == "__main__":
    sys.exit(main())
