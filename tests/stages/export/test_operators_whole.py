"""Products, attention, histograms, windows and what picks or moves elements are those of eager."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

FLOATS = (torch.float32, torch.float64)
ROUNDING = {torch.float32: 3e-6, torch.float64: 1e-13}
NAN, INF = float("nan"), float("inf")


class Counting(nn.Module):
    """A module of one state, so that it is exported as any other is."""

    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.tensor(0))


def normal(*sizes, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*sizes, generator=generator, dtype=torch.float64).to(dtype)


def eighths(rows, dtype=torch.float32, seed=0):
    """Rows of six multiples of 1/8 between -3 and 3, or whole numbers between 0 and 24."""
    whole = torch.randint(0, 25, (rows, 6), generator=torch.Generator().manual_seed(seed))
    return ((whole - 12) / 4 if dtype.is_floating_point else whole).to(dtype)


class Products(Counting):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        self.count = self.count + 1
        squares = x.unsqueeze(1) * y[:3].unsqueeze(-1)
        return {
            "inner": torch.inner(x, y),
            "inner_vectors": torch.inner(x[0], y[0]),
            "inner_of_vector": torch.inner(x[0], y),
            "inner_by_vector": torch.inner(x, y[0]),
            "inner_of_number": torch.inner(x[0, 0], y),
            "vdot": torch.vdot(x[0], y[0]),
            "addmv": torch.addmv(x[:, 0], x, y[0]),
            "addmv_scaled": torch.addmv(x[:, 0], x, y[0], beta=0.3, alpha=-2),
            "addr": torch.addr(squares[0], y[0], x[0]),
            "addr_scaled": torch.addr(squares[0], y[0], x[0], beta=2, alpha=0.5),
            "addbmm": torch.addbmm(squares[0], squares, squares),
            "addbmm_alone": torch.addbmm(squares[0], squares, squares, beta=0),
            "multi_dot": torch.linalg.multi_dot([x, y.t(), y, x[0]]),
            "kron": torch.kron(x, y),
            "kron_of_ranks": torch.kron(x[0], squares),
            "bilinear": F.bilinear(x, y[:3], squares, x[0, :3]),
        }


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_products_of_vectors_and_matrices_are_those_of_eager(dtype, same_as_eager):
    def draw(seed):
        return normal(3, 4, dtype=dtype, seed=seed), normal(3, 4, dtype=dtype, seed=seed + 9)

    rounding = 10 * ROUNDING[dtype]
    same_as_eager(Products(), draw(0), [draw(1), draw(2)], rtol=rounding, atol=rounding)


class Attention(Counting):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        self.count = self.count + 1
        q, k = x, y
        seen = k[:, :, :, 0].unsqueeze(2) > -0.5
        attend = F.scaled_dot_product_attention
        few = k[:, :1]
        return {
            "bool_mask": attend(q, k, k, attn_mask=seen),
            "nothing_seen": attend(q, k, k, attn_mask=seen & (q[..., :1] > 0)),
            "float_mask": attend(q, k, k, attn_mask=k[:, :, :, 0].unsqueeze(2)),
            "infinite_mask": attend(q, k, k, attn_mask=torch.log(seen.to(q) * (q[..., :1] > 0))),
            "scaled": attend(q, k, k, attn_mask=seen, scale=0.3),
            "plain": attend(q, k, k),
            "causal": attend(q, k, k, is_causal=True),
            "grouped": attend(q, few, few, enable_gqa=True),
            "grouped_causal": attend(q, few, few, is_causal=True, enable_gqa=True),
            "grouped_masked": attend(q, few, few, attn_mask=seen[:, :1], enable_gqa=True),
        }


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_attention_gives_zeros_where_a_query_sees_nothing(dtype, same_as_eager):
    def draw(batch, queries, keys):
        seed = batch + queries + keys
        return (
            normal(batch, 2, queries, 4, dtype=dtype, seed=seed),
            normal(batch, 2, keys, 4, dtype=dtype, seed=seed + 1),
        )

    axes = {"x": {0: "batch", 2: "queries"}, "y": {0: "batch", 2: "keys"}}
    given = [draw(1, 2, 2), draw(3, 2, 6), draw(2, 5, 3)]
    rounding = 10 * ROUNDING[dtype]
    same_as_eager(Attention(), draw(2, 3, 4), given, axes=axes, rtol=rounding, atol=rounding)


class Arranged(Counting):
    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        self.count = self.count + 1
        filled = x.clone()
        filled[:, 1:] = x[:, :1]
        return {
            "quarter": torch.rot90(x),
            "half": torch.rot90(x, 2),
            "back": torch.rot90(x, -1, [1, 0]),
            "three": torch.rot90(x, 3, [0, 1]),
            "whole": torch.rot90(x, 4),
            "left_right": torch.fliplr(x),
            "up_down": torch.flipud(x),
            "shuffled": F.channel_shuffle(x.reshape(x.size(0), 6, 1, 1), 3),
            "taken_flat": torch.take_along_dim(x, torch.argsort(x[0], stable=True)),
            "selected": torch.masked_select(x, x > 1),
            "selected_broadcast": torch.masked_select(x, x[0] > 1),
            "selected_truth": torch.masked_select(x > 2, x > 1),
            "where": torch.argwhere(x > 1),
            "filled": filled,
            "repeated": torch.repeat_interleave(x, torch.tensor([2, 0, 1, 0, 3, 1]), 1),
            "repeated_same": torch.repeat_interleave(x, torch.tensor([2]), 1),
            "repeated_number": torch.repeat_interleave(x, 2, 0),
            "among": torch.isin(x, torch.tensor([1, 2, 0]).to(x)),
            "not_among": torch.isin(x, torch.tensor([1, 2, 0]).to(x), invert=True),
            "is_one": torch.isin(x, 1),
            "greatest": torch.amax(x),
            "greatest_kept": x.amax(keepdim=True),
            "least": x.amin(),
            "least_along": x.amin([0, 1]),
            "range": torch.stack(torch.aminmax(x)),
            "range_along": torch.stack(torch.aminmax(x, dim=1, keepdim=True)),
        }


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64, torch.int32, torch.uint8], ids=str)
def test_elements_are_moved_and_picked_as_in_eager(dtype, same_as_eager):
    given = [(eighths(rows, dtype, rows),) for rows in (1, 2, 5)]
    same_as_eager(Arranged(), (eighths(3, dtype),), given, axes={"x": {0: "n"}})


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64, torch.uint8], ids=str)
def test_elements_are_taken_along_a_dimension_as_in_eager(dtype, same_as_eager):
    class Taken(Counting):
        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            self.count = self.count + 1
            order = torch.argsort(x, dim=1, stable=True)
            return {
                "each": torch.take_along_dim(x, order, 1),
                "broadcast": torch.take_along_dim(x, order[:1], 1),
                "broadcast_too": torch.take_along_dim(x[:1], order, -1),
                "narrow": torch.take_along_dim(x, order[:, :2], 1),
                "flat": torch.take_along_dim(x, torch.argsort(x[0], stable=True)),
            }

    given = [(eighths(3, dtype, seed),) for seed in (1, 2)]
    same_as_eager(Taken(), (eighths(3, dtype),), given)


@pytest.mark.parametrize("limits", [(-7, 7), (0, 255), (-128, 127), (0, 15)])
def test_numbers_are_quantized_to_any_range(limits, same_as_eager):
    class Quantized(Counting):
        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            self.count = self.count + 1
            least, most = self.limits
            quantize = torch.fake_quantize_per_tensor_affine
            return {"to": quantize(x, 0.25, 1, least, most)}

    module = Quantized()
    module.limits = limits
    given = [(eighths(3, seed=seed) * 3,) for seed in (1, 2)]
    same_as_eager(module, (eighths(3),), given)


class Sums(Counting):
    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        self.count = self.count + 1
        places = torch.tensor([0.0, 0.5, 1.5, 2.0, 4.0, 4.5]).to(x)
        return {
            "area": torch.trapezoid(x, dim=1),
            "area_wide": torch.trapezoid(x, dx=0.3),
            "area_down": torch.trapezoid(x, dim=0),
            "area_at": torch.trapezoid(x, places),
            "area_at_each": torch.trapezoid(x, x.cumsum(1), dim=1),
            "areas": torch.cumulative_trapezoid(x, places, dim=1),
            "areas_down": torch.cumulative_trapezoid(x, dx=0.5, dim=0),
            "renorm": torch.renorm(x, 2, 0, 1.5),
            "renorm_other": torch.renorm(x, 1.0, 1, 0.7),
            "histogram": torch.histc(x, 6, -2.0, 2.0),
            "histogram_of_all": torch.histc(x, 5),
            "histogram_of_same": torch.histc(x[0, :1], 4),
        }


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_areas_histograms_and_limited_norms_are_those_of_eager(dtype, same_as_eager):
    rounding = ROUNDING[dtype]
    given = [(eighths(rows, dtype, rows),) for rows in (1, 2, 5)]
    same_as_eager(
        Sums(), (eighths(3, dtype),), given, axes={"x": {0: "n"}}, rtol=rounding, atol=rounding
    )


def test_a_mean_leaves_out_nan_and_a_histogram_what_is_outside(same_as_eager):
    class Left(Counting):
        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            self.count = self.count + 1
            return {
                "mean": torch.nanmean(x),
                "mean_along": torch.nanmean(x, 1),
                "mean_kept": torch.nanmean(x, [0], True),
                "mean_wide": torch.nanmean(x, 1, dtype=torch.float64),
                "greatest": x.amax(),
                "least_along": torch.aminmax(x, dim=1)[0],
                "least_of_one": x[0, 0].amin(),
                "histogram": torch.histc(x.clamp(-9, 9), 4, -1.0, 1.0),
            }

    odd = eighths(4, seed=1)
    odd[0, 2] = odd[3, 0] = odd[3, 4] = NAN
    odd[1] = NAN
    odd[2, 2] = INF
    axes = {"x": {0: "n"}}
    same_as_eager(Left(), (eighths(3),), [(odd,), (odd[1:2],)], axes=axes, rtol=1e-6)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8], ids=str)
def test_numbers_are_counted_up_to_the_greatest(dtype, same_as_eager):
    class Counts(Counting):
        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            self.count = self.count + 1
            flat = x.reshape(-1)
            return {
                "counts": torch.bincount(flat),
                "at_least": torch.bincount(flat, minlength=20),
                "weights": torch.bincount(flat, flat * 0.25),
                "wide_weights": torch.bincount(flat, flat.double()),
            }

    given = [(eighths(rows, dtype, rows),) for rows in (1, 2, 5)]
    same_as_eager(Counts(), (eighths(3, dtype),), given, axes={"x": {0: "n"}})


def test_windows_are_those_of_eager(same_as_eager):
    class Windows(Counting):
        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            self.count = self.count + 1
            return {
                "hann": x * torch.hann_window(6),
                "hann_symmetric": x * torch.hann_window(6, periodic=False),
                "hamming": x * torch.hamming_window(6),
                "hamming_other": x * torch.hamming_window(6, False, 0.6, 0.4),
                "blackman": x * torch.blackman_window(6),
                "bartlett": x * torch.bartlett_window(6),
                "kaiser": x * torch.kaiser_window(6),
                "frequencies": x * torch.fft.fftfreq(6, 0.5),
            }

    same_as_eager(Windows(), (eighths(3),), [(eighths(3, seed=1),)], rtol=1e-6)


class Overlap(nn.Module):
    """A spectrum back and forth: the frames overlap, and are added at places in int32."""

    def __init__(self):
        super().__init__()
        self.register_buffer("window", torch.hann_window(8))
        self.register_buffer("last", torch.zeros(2, 32))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        spectrum = torch.stft(self.last, 8, 4, window=self.window, return_complex=True)
        self.last = x
        return {"signal": torch.istft(spectrum * 0.5, 8, 4, window=self.window)}


def test_frames_of_a_spectrum_overlap(tmp_path):
    import stateful_pipeline as sp

    path = tmp_path / "m.onnx"
    sp.export_onnx(Overlap(), (normal(2, 32),), path, frontend="export")
    runner, module = sp.StatefulRunner(path), Overlap()
    for seed in range(1, 5):
        x = normal(2, 32, seed=seed)
        got, expected = runner.run({"x": x.numpy()})["signal"], module(x)["signal"]
        torch.testing.assert_close(torch.from_numpy(got), expected, rtol=1e-5, atol=1e-5)
