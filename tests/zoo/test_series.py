"""The CO2 record as a task: complete, causal, and honest about what was not measured."""

from pathlib import Path

import numpy as np

from stateful_pipeline.zoo.series import (
    FEATURES,
    HELD_OUT,
    HORIZONS,
    SERIES,
    YEAR,
    load_series,
    split,
)

MEASURED = FEATURES.index("measured")


def test_record_is_weekly_and_without_a_gap() -> None:
    series = load_series()
    assert set(np.diff(series.dates)) == {np.timedelta64(7, "D")}
    assert len(series.x) == len(series.y) == len(series.seasonal) == 2284 - YEAR
    assert np.isfinite(series.x).all()
    assert np.isfinite(series.seasonal[: -max(HORIZONS)]).all()


def test_held_out_weeks_are_the_last_ones() -> None:
    seen, held_out = split(load_series())
    assert len(held_out.x) == HELD_OUT
    assert seen.dates[-1] < held_out.dates[0]
    assert str(held_out.dates[-1]) == "2001-12-29"


def test_samples_do_not_depend_on_later_weeks(tmp_path: Path) -> None:
    lines = SERIES.read_text().splitlines(keepends=True)
    shorter = tmp_path / "shorter.csv"
    shorter.write_text("".join(lines[: 1 + YEAR + 300]))
    assert np.array_equal(load_series(shorter).x, load_series().x[:300])


def test_target_is_the_change_that_follows(tmp_path: Path) -> None:
    rising = tmp_path / "rising.csv"
    days = np.datetime64("2000-01-01") + 7 * np.arange(YEAR + 40)
    rows = [f"{day},{300 + 0.5 * week}" for week, day in enumerate(days)]
    rising.write_text("\n".join(["date,co2_ppm", *rows]))
    series = load_series(rising)
    assert series.y[0].tolist() == [0.5 * horizon for horizon in HORIZONS]
    assert series.seasonal[0].tolist() == series.y[0].tolist()
    assert np.isnan(series.y[-1]).all()


def test_week_without_a_measurement_repeats_the_last_and_is_no_target() -> None:
    series = load_series()
    missing = np.flatnonzero(series.x[:, MEASURED] == 0)
    assert len(missing) > 0
    assert (series.x[missing, FEATURES.index("week_change")] == 0).all()
    assert np.isnan(series.y[missing]).all()
    assert np.isnan(series.y[missing - 1, HORIZONS.index(1)]).all()
