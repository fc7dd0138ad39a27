"""Medians, quantiles, sorting and what runs along a dimension are those of eager.

Numbers are ties, negative, infinite or NaN, and rows are few or many; examples are none of it.
"""

import pytest
import torch
from torch import nn

FLOATS = (torch.float32, torch.float64)
DTYPES = (*FLOATS, torch.int64, torch.int32, torch.uint8)
ROUNDING = {torch.float32: 3e-6, torch.float64: 1e-14}
NAN, INF = float("nan"), float("inf")


class Counting(nn.Module):
    """A module of one state, so that it is exported as any other is."""

    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.tensor(0))


def matrix(rows, dtype, low=-4, seed=0):
    """Rows of seven halves or whole numbers, many of them equal."""
    generator = torch.Generator().manual_seed(seed)
    low = max(low, 0) if dtype == torch.uint8 else low
    drawn = torch.randint(low, 6, (rows, 7), generator=generator)
    return (drawn / 2 if dtype.is_floating_point else drawn).to(dtype)


def inputs(dtype):
    """Matrices of several numbers of rows, the last ones with what is special to floats."""
    plain = [(matrix(rows, dtype, seed=rows),) for rows in (1, 2, 5, 8)]
    if not dtype.is_floating_point:
        return plain
    rows = [
        [1.0, NAN, 2.0, -1.0, 0.0, 3.0, NAN],
        [INF, 1.0, -INF, INF, 2.0, -3.0, 0.5],
        [NAN, INF, NAN, INF, NAN, -INF, 2.0],
        [NAN] * 7,
        [-0.0, 0.0, -0.0, 0.0, -1.0, 1.0, 0.0],
    ]
    return [*plain, (torch.tensor(rows, dtype=dtype),), (torch.tensor(rows[:2], dtype=dtype),)]


class Medians(Counting):
    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        self.count = self.count + 1
        down, along = torch.median(x, 0), x.median(1, keepdim=True)
        return {
            "down": down.values,
            "down_at": x.gather(0, down.indices.unsqueeze(0)),
            "along": along.values,
            "along_at": x.gather(1, along.indices),
            "all": x.median(),
            "of_one": x[0, 0].median(),
            "of_one_along": x[0, 0].median(0).values,
            "last": torch.median(x, -1).values,
        }


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_median_is_the_lower_of_two_or_nan(dtype, same_as_eager):
    same_as_eager(Medians(), (matrix(3, dtype),), inputs(dtype), axes={"x": {0: "n"}})


def test_a_median_of_a_dimension_names_the_place_it_has(same_as_eager):
    class Places(Counting):
        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            self.count = self.count + 1
            return {
                "median": x.median(1).indices,
                "nanmedian": torch.nanmedian(x, 1).indices,
                "kthvalue": torch.kthvalue(x, 3, 1).indices,
            }

    generator = torch.Generator().manual_seed(0)
    drawn = [torch.rand(rows, 7, generator=generator).argsort(1).float() for rows in (3, 1, 9)]
    spoilt = drawn[2].clone()
    spoilt[2, 4] = spoilt[5, 0] = spoilt[5, 3] = NAN
    same_as_eager(Places(), (drawn[0],), [(x,) for x in (*drawn, spoilt)], axes={"x": {0: "n"}})


class FloatMedians(Counting):
    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        self.count = self.count + 1
        low, high = torch.tensor([0.0, 0.37, 1.0]).to(x), torch.tensor(0.81).to(x)
        return {
            "nanmedian": torch.nanmedian(x),
            "nanmedian_down": torch.nanmedian(x, 0).values,
            "nanmedian_along": torch.nanmedian(x, 1, True).values,
            "quantile": torch.quantile(x, 0.3),
            "quantile_of_all": torch.quantile(x, 0.3, None, True),
            "quantile_down": torch.quantile(x, 0.9, 0),
            "quantile_kept": torch.quantile(x, 0.25, 1, True),
            "quantiles": torch.quantile(x, low, 1),
            "quantiles_of_all": torch.quantile(x, low, None, True),
            "quantiles_kept": torch.quantile(x, low, 0, True),
            "quantile_given": torch.quantile(x, high, 1),
            "lower": torch.quantile(x, 0.4, 1, interpolation="lower"),
            "higher": torch.quantile(x, 0.4, 1, interpolation="higher"),
            "nearest": torch.quantile(x, 0.25, 1, interpolation="nearest"),
            "midpoint": torch.quantile(x, 0.4, 1, interpolation="midpoint"),
            "nanquantile": torch.nanquantile(x, 0.3, 1),
            "nanquantiles": torch.nanquantile(x, low, 1, True),
        }


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_quantiles_lie_between_what_is_sorted(dtype, same_as_eager):
    axes, given = {"x": {0: "n"}}, inputs(dtype)
    if same_as_eager.frontend == "export":  # it compares the size of the input with a limit
        axes, given = None, [(x,) for (x,) in given if len(x) == 5]
    same_as_eager(FloatMedians(), (matrix(5, dtype),), given, axes=axes, rtol=ROUNDING[dtype])


class Sorted(Counting):
    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        self.count = self.count + 1
        stable = torch.sort(x, dim=1, stable=True)
        down = torch.sort(x, dim=1, stable=True, descending=True)
        return {
            "sorted": stable[0],
            "places": stable[1],
            "falling": down[0],
            "falling_places": down[1],
            "sorted_down": torch.sort(x, 0)[0],
            "order": torch.argsort(x, dim=1, stable=True),
            "order_falling": torch.argsort(x, dim=0, descending=True, stable=True),
            "msort": torch.msort(x),
            "third": torch.kthvalue(x, 3, 1)[0],
            "last": torch.kthvalue(x, 7, 1, True)[0],
            "of_one": torch.sort(x[0, 0], 0)[0],
            "of_none": torch.sort(x[:, 7:], 1)[0],
            "of_rows_of_none": torch.sort(x[:, 7:], 0)[0],
            "mode": torch.mode(x.clamp(0, 9), 1)[0],
            "mode_place": torch.mode(x.clamp(0, 9), 1)[1],
            "mode_kept": torch.mode(x.clamp(0, 9), 0, True)[0],
        }


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_equal_numbers_stay_in_their_order_and_nan_is_the_greatest(dtype, same_as_eager):
    given = [(x.nan_to_num(2.5, 2.5, -2.5),) for (x,) in inputs(dtype)]
    same_as_eager(Sorted(), (matrix(3, dtype),), given, axes={"x": {0: "n"}})


def test_nan_comes_behind_infinity(same_as_eager):
    class Behind(Counting):
        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            self.count = self.count + 1
            values, places = torch.sort(x, dim=1, stable=True)
            return {
                "sorted": values,
                "places": places,
                "falling": torch.sort(x, dim=1, descending=True, stable=True)[1],
                "fifth": torch.kthvalue(x, 5, 1)[0],
            }

    axes = {"x": {0: "n"}}
    same_as_eager(Behind(), (matrix(3, torch.float32),), inputs(torch.float32), axes=axes)


class Running(Counting):
    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        self.count = self.count + 1
        greatest, least = torch.cummax(x, 1), torch.cummin(x, 0)
        return {
            "greatest": greatest.values,
            "greatest_at": greatest.indices,
            "least": least.values,
            "least_at": least.indices,
            "product": torch.cumprod(x, 1),
            "product_down": torch.cumprod(x, 0),
            "product_wide": torch.cumprod(x, 1, dtype=torch.float64),
            "of_one": torch.cummax(x[0, 0], 0).values,
            "of_none": torch.cumprod(x[:, 7:], 1),
            "of_rows_of_none": torch.cummax(x[:, 7:], 0).values,
        }


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_running_extremes_and_products_are_those_of_eager(dtype, same_as_eager):
    rounding = ROUNDING.get(dtype, 0)
    axes = {"x": {0: "n"}}
    same_as_eager(Running(), (matrix(3, dtype),), inputs(dtype), axes=axes, rtol=rounding)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_running_logarithms_of_sums_are_those_of_eager(dtype, same_as_eager):
    class Logarithms(Counting):
        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            self.count = self.count + 1
            return {"along": torch.logcumsumexp(x, 1), "down": torch.logcumsumexp(100 * x, 0)}

    given = [(x.nan_to_num(0.0, 3.0, -INF),) for (x,) in inputs(dtype)]
    rounding = ROUNDING[dtype]
    same_as_eager(
        Logarithms(), (matrix(3, dtype),), given, axes={"x": {0: "n"}}, rtol=rounding, atol=rounding
    )


class Places(Counting):
    def __init__(self, dtype):
        super().__init__()
        self.register_buffer("edges", torch.tensor([-1, 0, 0, 2]).to(dtype))
        self.register_buffer("mixed", torch.tensor([2, 0, -1, 0]).to(dtype))
        self.register_buffer("order", torch.tensor([2, 1, 3, 0]))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        self.count = self.count + 1
        rows = x.sort(1)[0]
        return {
            "left": torch.searchsorted(self.edges, x),
            "right": torch.searchsorted(self.edges, x, right=True),
            "side": torch.searchsorted(self.edges, x, side="right"),
            "short": torch.searchsorted(self.edges, x, out_int32=True),
            "of_number": torch.searchsorted(self.edges, 1),
            "of_rows": torch.searchsorted(rows, x, right=True),
            "by_order": torch.searchsorted(self.mixed, x, sorter=self.order),
        }


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.int32], ids=str)
def test_places_in_what_is_sorted_are_left_or_right_of_ties(dtype, same_as_eager):
    given = [(x.nan_to_num(2.0),) for (x,) in inputs(dtype)]
    same_as_eager(Places(dtype), (matrix(3, dtype),), given, axes={"x": {0: "n"}})


def test_nan_has_its_place_behind_all_numbers(same_as_eager):
    class Behind(Counting):
        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            self.count = self.count + 1
            edges = torch.tensor([-1.0, 0.0, 2.0])
            return {"left": torch.searchsorted(edges, x)}

    same_as_eager(
        Behind(), (matrix(3, torch.float32),), inputs(torch.float32), axes={"x": {0: "n"}}
    )
