"""The weekly CO2 record of Mauna Loa as a forecasting task: samples, targets and naive forecasts.

After each week *t* the forecaster says by how much the concentration will have changed *k* weeks
later, for each *k* of :data:`HORIZONS`: ``y[t, k] = co2[t + k] - co2[t]``, in ppm.  What it sees of
week *t* (:data:`FEATURES`) uses week *t* and earlier ones only, so that it could run live.  A week
without a measurement repeats the last one and says so; it is the target of no forecast.

The last :data:`HELD_OUT` weeks are never trained on.  See ``data/README.md`` for the source.
"""

from __future__ import annotations

import csv
import datetime
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

DATA = Path(__file__).parent / "data"
SERIES = DATA / "mauna_loa_co2.csv"
WEIGHTS = DATA / "lstm.safetensors"
RECORDING = DATA / "held_out.npz"

YEAR = 52
"""Weeks in a year, near enough to compare the same season."""
HORIZONS = (1, 4, 13, 26)
"""How many weeks ahead each output looks."""
FEATURES = ("week_change", "above_year_mean", "year_change", "season_sin", "season_cos", "measured")
"""What one sample holds; changes are in ppm, the season is the angle of the day in its year."""
HELD_OUT = 520
"""Weeks at the end of the record that training never sees, as inputs or as targets: ten years."""

Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Series:
    """The record, ready to learn from; the first year has gone into the features.

    Attributes:
        dates: The day that each week ends on, ``[weeks]``.
        x: The samples, ``[weeks, len(FEATURES)]``.
        y: The changes to forecast in ppm, ``[weeks, len(HORIZONS)]``; NaN where either end of the
            change was not measured or lies past the end of the record.
        seasonal: The seasonal-naive forecast in ppm, like ``y``: the change that followed the same
            week a year before.
    """

    dates: npt.NDArray[np.datetime64]
    x: Float32
    y: Float32
    seasonal: Float32

    def __getitem__(self, weeks: slice) -> Series:
        """Return some of the weeks."""
        return Series(self.dates[weeks], self.x[weeks], self.y[weeks], self.seasonal[weeks])


def load_series(path: Path = SERIES) -> Series:
    """Read the record and derive samples, targets and naive forecasts from it."""
    dates, measured = _read(path)
    level = _repeat_last(measured)
    weeks = np.arange(YEAR, len(level))
    ahead = {k: np.minimum(weeks + k, len(level) - 1) for k in HORIZONS}
    y = np.stack([measured[ahead[k]] - measured[weeks] for k in HORIZONS], axis=1)
    for column, k in enumerate(HORIZONS):
        y[weeks + k >= len(level), column] = np.nan
    seasonal = np.stack([level[weeks - YEAR + k] - level[weeks - YEAR] for k in HORIZONS], axis=1)
    year_mean = np.array([level[week - YEAR : week].mean() for week in weeks])
    angle = 2 * np.pi * np.array([_part_of_year(dates[week]) for week in weeks])
    x = np.stack(
        [
            level[weeks] - level[weeks - 1],
            level[weeks] - year_mean,
            level[weeks] - level[weeks - YEAR],
            np.sin(angle),
            np.cos(angle),
            np.isfinite(measured[weeks]),
        ],
        axis=1,
    )
    return Series(
        np.array([np.datetime64(dates[week]) for week in weeks]),
        x.astype(np.float32),
        y.astype(np.float32),
        seasonal.astype(np.float32),
    )


def split(series: Series) -> tuple[Series, Series]:
    """Return what may be trained on, and what is held out.

    A target near the end of the first part lies in the second: it is taken out (NaN).
    """
    seen, held_out = series[:-HELD_OUT], series[-HELD_OUT:]
    y = seen.y.copy()
    for column, k in enumerate(HORIZONS):
        y[-k:, column] = np.nan
    return Series(seen.dates, seen.x, y, seen.seasonal), held_out


def mean_absolute_error(forecast: Float32, y: Float32) -> npt.NDArray[np.float64]:
    """Return the mean absolute error in ppm for each horizon, ``[len(HORIZONS)]``.

    Args:
        forecast: ``[weeks, len(HORIZONS)]``, ppm.
        y: What came, in the same shape; NaN is left out.
    """
    error: npt.NDArray[np.float64] = np.nanmean(np.abs(forecast.astype(np.float64) - y), axis=0)
    return error


def recording(held_out: Series) -> dict[str, Float32]:
    """Return the arrays of ``held_out.npz``: one stream, sample by sample.

    The first axis is the step: ``x`` is ``[weeks, 1, 1, len(FEATURES)]`` and ``y``, what was to be
    forecast, ``[weeks, 1, 1, len(HORIZONS)]``.
    """
    return {"x": held_out.x[:, None, None, :], "y": held_out.y[:, None, None, :]}


def _read(path: Path) -> tuple[list[datetime.date], npt.NDArray[np.float64]]:
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    dates = [datetime.date.fromisoformat(row["date"]) for row in rows]
    return dates, np.array([float(row["co2_ppm"] or "nan") for row in rows])


def _repeat_last(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Put the last measured value where there is none."""
    last = np.maximum.accumulate(np.where(np.isfinite(values), np.arange(len(values)), 0))
    return values[last]


def _part_of_year(date: datetime.date) -> float:
    return (date.timetuple().tm_yday - 1) / 365.25
