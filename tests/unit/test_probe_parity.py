"""The parity probe against torch's own comparison, exact fractions, and files and modules that differ where we say."""

import math
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from torch import nn

from breakfix.probes.parity import (
    TOLERANCE,
    WHOLE,
    compare,
    distance,
    first_divergence,
    layer_outputs,
    leaves,
    onnx_callable,
    relative_error,
)

sane = st.floats(-1e6, 1e6, allow_nan=False)
shapes = array_shapes(min_dims=0, max_dims=3, max_side=4)
some = arrays(np.float64, shapes, elements=sane)


def many(*strategies):
    """hypothesis without a deadline: the first call of anything in torch takes longer than the rest."""
    return lambda test: settings(deadline=None)(given(*strategies)(test))


def whats(differences) -> list[str]:
    return [difference.what for difference in differences]


def test_importing_it_imports_no_onnx():
    """The probe is at home in a script that has neither onnx nor onnxruntime, nor yet torch."""
    code = "import sys, breakfix.probes.parity; print({'onnx', 'onnxruntime', 'torch'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


# relative_error and distance ------------------------------------------------------------------------------------------


@many(st.lists(st.integers(-1000, 1000), min_size=1, max_size=6), st.lists(st.integers(-9, 9), min_size=6, max_size=6))
def test_relative_error_is_the_ratio_of_norms(want, noise):
    """In exact fractions: its square is the sum of squared differences over the sum of squares."""
    got = [value + step for value, step in zip(want, noise, strict=False)]
    above = sum(Fraction(g - w) ** 2 for g, w in zip(got, want, strict=True))
    below = sum(Fraction(w) ** 2 for w in want) or Fraction(1)
    assert relative_error(got, want) == pytest.approx(math.sqrt(above / below), rel=1e-12)


def test_relative_error_hides_nothing():
    assert math.isnan(relative_error([1.0, math.nan], [1.0, math.nan]))
    assert relative_error(np.ones((3, 1)), np.ones((3, 3))) == math.inf
    assert relative_error([1e-9], [0.0]) == 1e-9


@many(st.lists(st.integers(-1000, 1000), min_size=1, max_size=6), st.lists(st.integers(-9, 9), min_size=6, max_size=6))
def test_distance_is_what_its_docstring_says(want, noise):
    got = [value + step for value, step in zip(want, noise, strict=False)]
    rms = math.sqrt(sum(value * value for value in want) / len(want))
    wanted = max(abs(g - w) / ((abs(w) + rms) or 1) for g, w in zip(got, want, strict=True))
    assert distance(got, want) == pytest.approx(wanted, rel=1e-12)


@many(some, st.integers(-300, 300), st.floats(-1e-3, 1e-3))
def test_distance_knows_no_unit(want, power, noise):
    """Both sides times a power of two: the same distance, to the last bit that the range leaves."""
    got, scale = want * (1 + noise) + noise * np.abs(want).max(initial=0.0), 2.0**power
    if np.abs(want).max(initial=0.0) > 1e-9:
        assert distance(got * scale, want * scale) == pytest.approx(distance(got, want), rel=1e-9, abs=1e-15)


@many(some)
def test_distance_to_itself_is_zero(value):
    assert distance(value, value.copy()) == 0.0


def test_distance_hides_nothing():
    assert math.isnan(distance([1.0, math.nan], [1.0, 2.0]))
    assert math.isnan(distance([1.0, math.nan], [1.0, math.nan]))
    assert math.isnan(distance([math.nan], [math.inf]))
    assert distance([math.inf, 1.0], [math.inf, 1.0]) == 0.0
    assert distance([-math.inf], [math.inf]) == distance([1.0], [math.inf]) == distance([math.inf], [1.0]) == math.inf
    assert distance(np.ones((3, 1)), np.ones((3, 3))) == math.inf
    assert distance(np.zeros(0), np.zeros(0)) == 0.0
    assert distance([1e-5], [0.0]) == 1e-5


# compare --------------------------------------------------------------------------------------------------------------


@many(
    arrays(np.float32, shapes, elements=st.floats(-100, 100, width=32)),
    st.sampled_from([0.0, 1e-7, 1e-6, 1e-3, 0.1, 1.0, math.nan]),
)
def test_compare_accepts_what_assert_close_accepts_at_the_same_bound(want, noise):
    """torch.testing.assert_close, whose atol and rtol are set to this array's bound, decides alike in every case."""
    got = (want + np.float32(noise) * (1 + np.abs(want))).astype(np.float32)
    rms = float(np.sqrt(np.mean(want.astype(np.float64) ** 2)))
    bound = TOLERANCE["float32"]
    found = compare(lambda x: want, lambda x: got, {"x": (0,)})
    apart = np.abs(got.astype(np.float64) - want) - bound * ((np.abs(want) + rms) if rms else 1.0)
    if np.abs(np.nan_to_num(apart, nan=1.0)).min() < 1e-9:
        return  # on the line itself the order of rounding decides
    try:
        exact = [torch.from_numpy(np.asarray(value, np.float64)) for value in (got, want)]
        torch.testing.assert_close(*exact, rtol=bound, atol=bound * rms if rms else bound)
    except AssertionError:
        assert whats(found) == ["nan" if math.isnan(noise) else "value"]
    else:
        assert found == []


@many(shapes, shapes)
def test_compare_never_broadcasts(one, other):
    found = compare(lambda x: np.ones(one), lambda x: np.ones(other), {"x": 0})
    assert whats(found) == ([] if one == other else ["shape"])


@many(st.sampled_from(["float16", "bfloat16", "float32", "float64"]), st.sampled_from(["float16", "float32", "int64"]))
def test_compare_minds_the_dtype_before_the_value(one, other):
    found = compare(lambda x: torch.ones(2, dtype=getattr(torch, one)), lambda x: np.ones(2, other), {"x": 0})
    assert whats(found) == ([] if one == other else ["dtype"])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_the_tolerance_of_a_dtype_spares_its_rounding(dtype):
    """A product of a hundred terms passes, rounded once to the dtype; a tenth of its spread on top does not."""
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(64, 100, generator=generator, dtype=torch.float64) for _ in range(2))
    want = a @ b.T
    rounded = want.to(getattr(torch, dtype))
    assert compare(lambda x: rounded, lambda x: (b @ a.T).T.to(rounded.dtype), {"x": 0}) == []
    wrong = (want + want.std() / 10).to(rounded.dtype)
    assert whats(compare(lambda x: rounded, lambda x: wrong, {"x": 0})) == ["value"]


def test_a_large_value_covers_no_small_array_and_the_reverse():
    """An absolute bound of 1e-3 passes both of these."""
    assert whats(compare(lambda x: np.float32([1e-6]), lambda x: np.float32([5e-6]), {"x": 0})) == ["value"]
    assert whats(compare(lambda x: np.float32([1000.0]), lambda x: np.float32([1000.9]), {"x": 0})) == ["value"]


def test_integers_and_booleans_must_be_equal():
    assert compare(lambda x: torch.tensor([2**53 + 1]), lambda x: torch.tensor([2**53 + 1]), {"x": 0}) == []
    assert whats(compare(lambda x: torch.tensor([2**53]), lambda x: torch.tensor([2**53 + 1]), {"x": 0})) == ["value"]
    assert whats(compare(lambda x: torch.tensor(True), lambda x: torch.tensor(False), {"x": 0})) == ["value"]


def test_outputs_pair_by_name_or_by_place():
    one, two = np.zeros(1), np.ones(1)
    same = [
        ({"a": one, "b": two}, {"b": two, "a": one}),
        ((one, two), {"a": one, "b": two}),
        ([one, [two]], (one, [two])),
    ]
    for want, got in same:
        assert compare(lambda x, v=want: v, lambda x, v=got: v, {"x": 0}) == []
    other = [({"a": one}, {"b": one}), ((one, two), (one,)), ({"a": one, "b": two}, {"a": one})]
    for want, got in other:
        assert whats(compare(lambda x, v=want: v, lambda x, v=got: v, {"x": 0})) == ["outputs"]
    assert [name for name, _ in leaves({"a": one, "b": (two, two)})] == ["a", "b.0", "b.1"]


def test_what_is_no_array_must_be_equal():
    assert compare(lambda x: ("cat", None, 1.5), lambda x: ("cat", None, 1.5), {"x": 0}) == []
    assert whats(compare(lambda x: ("cat", None), lambda x: ("dog", 1), {"x": 0})) == ["value", "dtype"]


def test_every_input_is_compared_and_what_the_candidate_raises_is_a_difference():
    def candidate(x, scale=1):
        if x == 2:
            raise IndexError("no such row")
        return x * scale

    found = compare(lambda x, scale=1: x * scale, candidate, {"one": (1,), "two": {"x": 2}, "three": 3})
    assert [(difference.at, difference.what) for difference in found] == [("two", "raises")]
    assert str(found[0]) == "two: raises IndexError: no such row, wanted an answer"
    with pytest.raises(ZeroDivisionError):
        compare(lambda x: 1 / x, lambda x: 0, {"zero": 0})


# first_divergence -----------------------------------------------------------------------------------------------------


def stack(depth: int) -> nn.Sequential:
    generator = torch.Generator().manual_seed(depth)
    layers = nn.Sequential(*[nn.Sequential(nn.Linear(3, 3), nn.Tanh()) for _ in range(depth)])
    for weight in layers.parameters():
        weight.data = torch.randn(weight.shape, generator=generator)
    return layers


@many(st.integers(1, 5).flatmap(lambda depth: st.tuples(st.just(depth), st.integers(0, depth - 1))))
def test_it_names_the_layer_whose_weight_differs(case):
    depth, at = case
    model, other = stack(depth), stack(depth)
    x = torch.randn(2, 3, generator=torch.Generator().manual_seed(0))
    assert first_divergence(model, other, x) is None
    other[at][0].bias.data += 0.1
    assert first_divergence(model, other, (x,)).at == f"{at}.0"
    assert not any(layer._forward_hooks for layer in model.modules())


def test_an_operation_outside_every_layer_is_the_whole_models():
    class Scaled(nn.Module):
        def __init__(self, by):
            super().__init__()
            self.layer, self.by = nn.Identity(), by

        def forward(self, x):
            return self.layer(x) * self.by

    assert first_divergence(Scaled(1.0), Scaled(2.0), torch.ones(2)).at == WHOLE


def test_layers_are_recorded_call_by_call_before_anything_overwrites_them():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Identity()

        def forward(self, x):
            return self.layer(self.layer(x).add_(1)).add_(1)

    seen = layer_outputs(Twice(), {"x": torch.zeros(1)})
    assert {layer: values[0][1].item() for layer, values in seen.items()} == {
        ("layer", 0): 0.0,
        ("layer", 1): 1.0,
        (WHOLE, 0): 2.0,
    }


def write_stack(model: nn.Sequential, path, notes: bool) -> None:
    """The stack as an ONNX file made by hand, from onnx's own helpers, named as either exporter would."""
    from onnx import TensorProto, helper, numpy_helper, save

    nodes, weights, value = [], [], "x"
    for index, (linear, _) in enumerate(model):
        for part, (op, reads) in enumerate([("Gemm", [f"w{index}", f"b{index}"]), ("Tanh", [])]):
            name = f"/{index}/{index}.{part}/{op}" if not notes else ""
            node = helper.make_node(
                op, [value, *reads], [f"v{index}.{part}"], name=name, **({"transB": 1} if reads else {})
            )
            if notes:
                scopes = ["", f"{index}", f"{index}.{part}", op.lower()]
                node.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=repr(scopes))
            nodes.append(node)
            value = node.output[0]
        for name, weight in ((f"w{index}", linear.weight), (f"b{index}", linear.bias)):
            weights.append(numpy_helper.from_array(weight.detach().numpy(), name))
    float_values = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 3]) for name in ("x", value)}
    graph = helper.make_graph(nodes, "stack", [float_values["x"]], [float_values[value]], weights)
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)


@pytest.mark.parametrize("notes", [True, False], ids=["names in notes", "names in paths"])
def test_it_names_the_layer_in_a_file_made_by_hand(tmp_path, notes):
    pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    model, path = stack(3), tmp_path / "model.onnx"
    x = torch.randn(2, 3, generator=torch.Generator().manual_seed(0))
    write_stack(model, path, notes)
    assert first_divergence(model, path, x) is None
    assert compare(model, onnx_callable(path), {"x": x}) == []
    for at in range(3):
        changed = stack(3)
        changed[at][0].weight.data[0, 0] += 1.0
        assert first_divergence(changed, str(path), (x,)).at == f"{at}.0"


class Branching(nn.Module):
    """Nested blocks, a layer called twice, and a branch by shape."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(2))
        self.shared, self.crop = nn.Linear(4, 4), Crop()

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.crop(self.shared(torch.tanh(self.shared(x))))


class Crop(nn.Module):
    def forward(self, x):
        return x[:, :4] if x.shape[1] > 4 else x * 2


@pytest.mark.parametrize("default", [True, False], ids=["default exporter", "old exporter"])
@pytest.mark.filterwarnings("ignore")
def test_it_finds_the_branch_that_an_exporter_froze(tmp_path, default):
    """Layers inside lists and layers called twice are found in the file; the frozen one is named, by its shape."""
    for needed in ("onnx", "onnxruntime", "onnxscript"):
        pytest.importorskip(needed)
    from breakfix.probes import _onnx

    torch.manual_seed(0)
    model, path, short, long = Branching().eval(), tmp_path / "model.onnx", torch.randn(2, 3, 4), torch.randn(2, 7, 4)
    axes = {"dynamic_shapes": {"x": {1: "length"}}} if default else {"dynamic_axes": {"x": {1: "length"}}}
    torch.onnx.export(model, (short,), path, input_names=["x"], dynamo=default, verbose=False, **axes)
    want = layer_outputs(model, short)
    assert _onnx.layer_outputs(path, short, want).keys() == want.keys()
    assert first_divergence(model, path, short) is None
    found = first_divergence(model, path, {"x": long})
    assert (found.at, found.what, found.got, found.want) == ("crop", "shape", "(2, 7, 4)", "(2, 4, 4)")
    model.shared.bias.data += 1.0
    assert first_divergence(model, path, short).at == "shared"


def test_without_onnx_it_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ImportError, match=r"breakfix\[onnx\]"):
        onnx_callable(tmp_path / "model.onnx")
