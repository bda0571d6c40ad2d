"""What claims/ledger.jsonl says about TorchScript, tracing, export, quantization and pruning, tried."""

import copy
import io
import warnings
from importlib.util import find_spec

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import prune

from breakfix.probes.parity import relative_error

pytestmark = pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning", "ignore::torch.jit.TracerWarning"
)
REFUSES = (RuntimeError, torch.jit.frontend.NotSupportedError)


def script(thing):
    return torch.jit.script(thing)


def test_scripting_and_tracing_are_deprecated():
    with pytest.warns((FutureWarning, DeprecationWarning)):
        torch.jit.script(nn.Linear(2, 2))
    with pytest.warns((FutureWarning, DeprecationWarning)):
        torch.jit.trace(nn.Linear(2, 2), torch.ones(1, 2))


# Functions that are scripted must lie in a file.
def optional(x: Tensor | None) -> Tensor:
    if isinstance(x, Tensor):
        return x
    return torch.zeros(1)


class Asks(nn.Module):
    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.ones(1))

    def forward(self, x):
        if hasattr(self, "bias"):
            return x + self.bias
        return x


def annotated(batch: dict[str, Tensor]) -> Tensor:
    return batch["text"] if "text" in batch.keys() else torch.zeros(1)  # noqa: SIM118


def bare(batch):
    return batch["text"] if "text" in batch.keys() else torch.zeros(1)  # noqa: SIM118


def asked_by_getattr(batch: dict[str, Tensor]):
    return getattr(batch, "text", None)


def test_isinstance_hasattr_and_in_can_be_scripted():
    assert script(optional)(None) == 0
    assert script(Asks())(torch.ones(1)) == 2
    assert script(annotated)({"text": torch.ones(1)}) == 1


def test_without_an_annotation_a_dict_is_taken_for_a_tensor():
    with pytest.raises(REFUSES):
        script(bare)


def test_getattr_does_not_ask_a_dict_for_its_key():
    with pytest.raises(REFUSES):
        script(asked_by_getattr)
    assert asked_by_getattr({"text": torch.ones(1)}) is None  # in eager code the key is there, and is not found


class Constant(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])

    def forward(self, x, i: int):
        return self.layers[1](x)


class Runtime(Constant):
    def forward(self, x, i: int):
        return self.layers[i](x)


class Listed(Constant):
    def forward(self, x, i: int):
        return list(self.layers)[i](x)


class Enumerated(Constant):
    def forward(self, x, i: int):
        for j, layer in enumerate(self.layers):
            if i == j:
                x = layer(x)
        return x


def test_a_module_list_takes_constant_indices():
    for kind in (Constant, Enumerated):
        model = kind()
        assert torch.equal(script(model)(torch.ones(1, 2), 1), model(torch.ones(1, 2), 1))
    for kind in (Runtime, Listed):
        with pytest.raises(REFUSES):
            script(kind())


class TwoFaces(nn.Module):
    def forward(self, x):
        if torch.jit.is_scripting():
            return x + 1
        return x + 2

    @torch.jit.export
    def encode(self, x):
        return 10 * x


def test_is_scripting_and_export_do_what_they_say():
    scripted = script(TwoFaces())
    assert (scripted(torch.ones(1)), TwoFaces()(torch.ones(1))) == (2, 3)
    assert scripted.encode(torch.ones(1)) == 10


def branches(x):
    return x + 1 if x.sum() > 0 else x - 1


def test_a_trace_hides_the_branch_that_it_did_not_take():
    x = torch.ones(2)
    traced = torch.jit.trace(branches, x)
    assert torch.equal(traced(x), branches(x))
    assert not torch.equal(traced(-x), branches(-x))
    assert torch.equal(script(branches)(-x), branches(-x))
    assert script(traced) is traced  # scripting a trace afterwards brings nothing back


def by_shape(x):
    return x.reshape(x.shape[0], -1)


def by_number(x):
    return torch.zeros(int(x.shape[0]), 1)


def test_a_trace_freezes_numbers_taken_from_shapes_and_not_shapes():
    two, four = torch.ones(2, 3), torch.ones(4, 3)
    assert torch.jit.trace(by_shape, two)(four).shape == (4, 3)
    assert torch.jit.trace(by_number, two)(four).shape == (2, 1)


def test_allclose_is_a_weak_comparison():
    a = torch.ones(3, 3)
    with pytest.raises(TypeError):
        torch.allclose(a, a.numpy())
    assert torch.allclose(a[:, :1], a, rtol=1e-3, atol=1e-5)  # it broadcasts
    assert torch.allclose(torch.tensor([1e-6]), torch.tensor([5e-6]), rtol=1e-3, atol=1e-5)
    for other in (a[:, :1], a.double()):
        with pytest.raises(AssertionError):
            torch.testing.assert_close(other, a)


# ----------------------------------------------------------------------------------------------------------- ONNX

ONNX = pytest.mark.skipif(not all(map(find_spec, ("onnx", "onnxruntime", "onnxscript"))), reason="needs breakfix[onnx]")


class Resize(nn.Module):
    def forward(self, x):
        return F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)


def test_bilinear_does_not_align_corners_unless_told():
    x = torch.randn(1, 1, 4, 4)
    assert torch.equal(Resize()(x), F.interpolate(x, scale_factor=2, mode="bilinear"))


@ONNX
def test_opset_11_can_resize_without_aligned_corners_and_the_old_exporter_returns_nothing():
    import onnxruntime

    x, file = torch.randn(1, 1, 4, 4), io.BytesIO()
    returned = torch.onnx.export(Resize(), (x,), file, opset_version=11, dynamo=False, input_names=["x"])
    answer = onnxruntime.InferenceSession(file.getvalue()).run(None, {"x": x.numpy()})[0]
    assert returned is None
    assert relative_error(torch.from_numpy(answer), Resize()(x)) < 1e-6


class Wide(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, x):
        return self.conv(x).relu()


@ONNX
def test_the_snippet_exports_and_the_exporter_infers_the_axes_that_it_leaves_out(tmp_path):
    import onnxruntime

    model, file = Wide().eval(), tmp_path / "model.onnx"
    axes = {"input": {0: "batch", 2: "height", 3: "width"}, "output": {0: "batch"}}
    names = {"input_names": ["input"], "output_names": ["output"]}
    torch.onnx.export(model, torch.randn(1, 3, 16, 16), file, opset_version=16, dynamic_axes=axes, **names)
    x = torch.randn(2, 3, 8, 20)
    (answer,) = onnxruntime.InferenceSession(file).run(None, {"input": x.numpy()})
    assert relative_error(torch.from_numpy(answer), model(x).detach()) < 1e-5


@ONNX
def test_one_file_gives_the_same_in_two_engines():
    import onnx
    import onnx.reference
    import onnxruntime

    model, x, file = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.randn(2, 4), io.BytesIO()
    torch.onnx.export(model, (x,), file, dynamo=False, input_names=["x"])
    feeds, parsed = {"x": x.numpy()}, onnx.load_from_string(file.getvalue())
    answers = [
        onnxruntime.InferenceSession(file.getvalue()).run(None, feeds)[0],
        onnx.reference.ReferenceEvaluator(parsed).run(None, feeds)[0],
    ]
    assert relative_error(*map(torch.from_numpy, answers)) < 1e-6


class Unusual(nn.Module):
    def forward(self, x):
        return torch.linalg.svdvals(x)


@ONNX
def test_an_operator_that_onnx_lacks_is_refused_and_can_be_traced():
    x = torch.randn(3, 3)
    with pytest.raises(torch.onnx.errors.UnsupportedOperatorError):
        torch.onnx.export(Unusual(), (x,), io.BytesIO(), dynamo=False)
    assert torch.allclose(torch.jit.trace(Unusual(), x)(x), Unusual()(x))


# --------------------------------------------------------------------------------------------------- quantization


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.conv, self.head = nn.LSTM(8, 8), nn.Conv1d(8, 8, 1), nn.Linear(8, 8)

    def forward(self, x):
        return self.head(self.lstm(x)[0])


def quantized(model: nn.Module) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.ao.quantization.quantize_dynamic(model, {nn.Linear, nn.LSTM, nn.Conv1d}, dtype=torch.qint8)


def size_of(model: nn.Module) -> int:
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    return file.getbuffer().nbytes


def test_dynamic_quantization_is_one_deprecated_line():
    with pytest.warns(DeprecationWarning):  # noqa: PT030
        torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(2, 2)), {nn.Linear}, dtype=torch.qint8)
    assert callable(torch.ao.quantization.prepare)
    assert callable(torch.ao.quantization.prepare_qat)


def test_what_dynamic_quantization_replaces():
    model = Recurrent().eval()
    small, x = quantized(model), torch.randn(3, 2, 8)
    assert [type(m).__module__.startswith("torch.ao.nn.quantized") for m in (small.lstm, small.conv, small.head)] == [
        True, False, True,
    ]  # fmt: skip
    assert small(x).dtype == torch.float32
    assert 0 < (small(x) - model(x)).abs().max() < 0.1
    assert type(quantized(nn.LSTM(8, 8))) is nn.LSTM  # alone it stays what it was, without a word


def test_a_quantized_linear_net_takes_about_a_quarter():
    model = nn.Sequential(nn.Linear(512, 512), nn.Linear(512, 512))
    assert 0.24 < size_of(quantized(model)) / size_of(model) < 0.27


def test_pruning_masks_and_removes_nothing():
    layer = nn.Linear(64, 64)
    before, shape = size_of(layer), layer.weight.shape
    prune.l1_unstructured(layer, "weight", amount=0.9)
    assert (layer.weight == 0).float().mean() == pytest.approx(0.9, abs=0.01)
    assert layer.weight.shape == shape
    assert size_of(layer) > 1.7 * before  # the mask and the original
    prune.remove(layer, "weight")
    assert size_of(layer) == pytest.approx(before, rel=0.05)


def test_there_are_several_ways_to_prune():
    names = "random_unstructured l1_unstructured random_structured ln_structured global_unstructured custom_from_mask"
    assert all(callable(getattr(prune, name)) for name in names.split())


def agreement(calibrated: float) -> float:
    """How often a statically quantized net chooses as before; calibrated with data of that scale, or not at all (0)."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4)).eval()
    x = torch.randn(500, 8)
    wrapped = torch.ao.quantization.QuantWrapper(copy.deepcopy(model)).eval()
    wrapped.qconfig = torch.ao.quantization.default_qconfig
    torch.ao.quantization.prepare(wrapped, inplace=True)
    if calibrated:
        wrapped(calibrated * x)
    torch.ao.quantization.convert(wrapped, inplace=True)
    return (wrapped(x).argmax(1) == model(x).argmax(1)).float().mean().item()


def test_static_quantization_is_as_good_as_its_calibration():
    assert agreement(1.0) > 0.9
    assert agreement(0.0) < 0.7  # nothing was raised
    assert agreement(1000.0) < 0.7
