"""Where a process of ``understudy`` begins."""

from __future__ import annotations

import pytest

from understudy.broker import cli, start


def test_ctrl_c_while_a_command_is_imported_leaves_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("sys.argv", ["understudy", "outlet", "--data", "b1"])
    monkeypatch.setattr(cli, "main", interrupted)
    with pytest.raises(SystemExit) as ended:
        start.main()
    assert ended.value.code == start.INTERRUPTED == 130
    assert capsys.readouterr() == ("", "")
