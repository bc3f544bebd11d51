"""Tampering: a short scenario in which one thing is falsified, so that one complaint of one checker must follow."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from tests.simulator.ledger import Violation
from tests.simulator.scenario import Scenario, scenario
from tests.simulator.tampering.complaints import Complaint, complaints_of


@attrs.frozen(kw_only=True)
class Tampering:
    """One falsification.

    Attributes:
        name: of the function.
        module, promise, words: who complains, of which promise, and words that no other complaint of them has; ``{}`` for a value.
        changes: fields of the knobs.
        tamper: falsifies, and lets happen what brings it to light.
    """

    name: str
    module: str
    promise: str
    words: str
    changes: dict[str, Any]
    tamper: Callable[[Scenario], None]

    def complaint(self) -> Complaint:
        """The one place in the source that says this: just this, or more."""
        alike = [
            each for each in complaints_of(self.module) if each.promise == self.promise and self.words in each.text
        ]
        (found,) = [each for each in alike if each.text == self.words] or alike
        return found

    def _tampered(self) -> None:
        with scenario(**self.changes) as group:
            self.tamper(group)
            pytest.fail(f"nobody complains of {self.name}")

    def brings_it_out(self) -> None:
        """The complaint comes from that very place."""
        with pytest.raises(Violation) as caught:
            self._tampered()
        complaint, error = self.complaint(), caught.value
        raised = traceback.extract_tb(error.__traceback__)[-1]
        assert raised.lineno is not None
        where = f"{Path(raised.filename).parent.name}/{Path(raised.filename).stem}"
        assert where.endswith(self.module), f"{where} complains: {error}"
        assert error.promise == self.promise
        assert re.search(".*".join(map(re.escape, self.words.split("{}"))), error.text), error.text
        assert complaint.says(error.text), error.text
        assert complaint.first_line <= raised.lineno <= complaint.last_line


def tampering(
    module: str, promise: str, words: str, **changes: Any
) -> Callable[[Callable[[Scenario], None]], Tampering]:
    """Make a tampering of a function."""

    def make(tamper: Callable[[Scenario], None]) -> Tampering:
        return Tampering(
            name=tamper.__name__, module=module, promise=promise, words=words, changes=changes, tamper=tamper
        )

    return make
