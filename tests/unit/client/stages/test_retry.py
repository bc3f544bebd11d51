"""The schedule of attempts."""

from __future__ import annotations

import pytest

from understudy.client.stages import ConfigurationError, Retry


def test_by_default_a_message_has_one_attempt_and_six_more() -> None:
    delays = [Retry().delay_ms(failures) for failures in range(1, 8)]
    assert delays == [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, None]


def test_delays_grow_by_the_factor_up_to_the_longest() -> None:
    retry = Retry(5, first=0.5, factor=3, most=2)
    assert [retry.delay_ms(failures) for failures in range(1, 6)] == [500, 1_500, 2_000, 2_000, None]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"attempts": 0}, "attempts = 0"),
        ({"first": -1}, "first = -1"),
        ({"factor": 0.5}, "factor = 0.5"),
        ({"first": 5, "most": 4}, "most = 4"),
        ({"most": 1e9}, "most = 1000000000.0"),
    ],
)
def test_a_value_out_of_its_range_is_named(arguments: dict[str, float], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        Retry(**arguments)  # type: ignore[arg-type]  # attempts is an int
