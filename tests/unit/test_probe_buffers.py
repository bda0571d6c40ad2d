"""What moved in a module: against the formula of batch norm, against version counters, against the bytes on disk."""

import hashlib
import io
import math
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm

from breakfix.probes.buffers import ROOT, distance, watch


class Lines(nn.Module):
    """Everything that a module can keep: parameters, batch norm, dropout, buffers in and out of its state_dict."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
        self.head = nn.Linear(4, 3)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.register_buffer("scratch", torch.ones(2), persistent=False)

    def forward(self, x):
        if self.training:
            self.seen += len(x)
        return self.head(self.body(x))


def names(seen):
    return {m.name for m in seen.moved}


# ------------------------------------------------------------------------------------ three sources that know no probe


@pytest.mark.parametrize("momentum", [0.1, 1.0, 0.0, None])
def test_batch_norm_moves_by_what_its_formula_says(momentum):
    torch.manual_seed(0)
    layer, x = nn.BatchNorm1d(5, momentum=momentum), 3 + 2 * torch.randn(16, 5)
    with torch.no_grad():
        layer(torch.randn(16, 5))  # the first batch
        layer.running_mean += 1
    old = {name: value.double().numpy().copy() for name, value in layer.named_buffers()}
    with watch(layer) as seen, torch.no_grad():
        layer(x)
    share = 1 / 2 if momentum is None else momentum  # None is the mean over all batches, of which this is the second
    batch = {"running_mean": x.double().numpy().mean(0), "running_var": x.double().numpy().var(0, ddof=1)}
    moved = {m.name: m.by for m in seen.moved}
    for name, statistic in batch.items():
        wanted = np.linalg.norm(share * (statistic - old[name])) / np.linalg.norm(old[name])
        assert moved.get(name, 0.0) == pytest.approx(wanted, rel=1e-5, abs=1e-12)
    assert moved["num_batches_tracked"] == 1


def blocks():
    """Things that one does to a model, by name."""

    def train_step(model, x):
        optimizer = torch.optim.SGD(model.head.parameters(), lr=0.1)
        model(x).square().sum().backward()
        optimizer.step()

    def evaluate(model, x):
        model.eval()
        with torch.no_grad():
            model(x)
        model.train()

    return {
        "train step": train_step,
        "evaluate": evaluate,
        "forward under no_grad": lambda model, x: torch.no_grad()(model)(x),
        "nothing": lambda model, x: None,
        "only a buffer": lambda model, x: model.scratch.add_(1),
    }


@pytest.mark.parametrize("name", list(blocks()))
def test_what_moved_is_what_autograd_counts_as_written(name):
    """Every write by an operator raises the tensor's version (torch.Tensor._version), but for one kind of write.

    The kernel of batch norm writes its running statistics without raising it; those the formula above accounts for.
    """
    torch.manual_seed(1)
    model, x = Lines(), torch.randn(8, 6)
    tensors = dict([*model.named_parameters(), *model.named_buffers()])
    before = {key: tensor._version for key, tensor in tensors.items()}
    with watch(model) as seen:
        blocks()[name](model, x)
    written = {key for key, tensor in tensors.items() if tensor._version != before[key]}
    statistics = {"body.1.running_mean", "body.1.running_var"} if "body.1.num_batches_tracked" in names(seen) else set()
    assert names(seen) == written | statistics


def test_any_subset_of_writes_is_told_apart_by_the_bytes_on_disk():
    def on_disk(model):
        hashes = {}
        for key, value in model.state_dict().items():
            file = io.BytesIO()
            torch.save(value.clone(), file)
            hashes[key] = hashlib.sha256(file.getvalue()).hexdigest()
        return hashes

    drawn = random.Random(2)
    model = Lines()
    for _ in range(25):
        state = model.state_dict()
        chosen = drawn.sample(sorted(state), drawn.randrange(len(state)))
        before = on_disk(model)
        with watch(model) as seen, torch.no_grad():
            for key in chosen:
                state[key].view(-1)[-1] += 1
        after = on_disk(model)
        assert names(seen) == set(chosen) == {key for key in before if before[key] != after[key]}


# ----------------------------------------------------------------------------------------------- whichever way it moved


def test_writes_behind_autograds_back_are_seen():
    model = Lines()
    counted = model.head.weight._version
    with watch(model) as seen:
        model.head.weight.data.mul_(2)
        model.body[1].running_mean.numpy()[:] = 7
    assert {m.name: m.by for m in seen.moved} == {
        "head.weight": pytest.approx(1.0),
        "body.1.running_mean": pytest.approx(7 * 2),  # from zero: absolute, sqrt(4 * 7 * 7)
    }
    assert model.head.weight._version == counted  # where the counter sees nothing


def test_tensors_that_come_go_or_take_another_form():
    model = Lines()
    with watch(model) as seen:
        del model.scratch
        model.register_buffer("new", torch.zeros(1))
        model.seen = torch.zeros(2, dtype=torch.int64)
        model.head.half()
    told = {m.name: (m.kind, m.how, m.by) for m in seen.moved}
    assert told == {
        "scratch": ("buffer", "removed", math.inf),
        "new": ("buffer", "added", math.inf),
        "seen": ("buffer", "shape [] -> [2]", math.inf),
        "head.weight": ("parameter", "dtype torch.float32 -> torch.float16", math.inf),
        "head.bias": ("parameter", "dtype torch.float32 -> torch.float16", math.inf),
    }


def test_a_tensor_replaced_by_an_equal_one_has_not_moved():
    model = Lines()
    with watch(model) as seen:
        model.head.weight = nn.Parameter(model.head.weight.detach().clone())
        model.load_state_dict({key: value.clone() for key, value in model.state_dict().items()})
    assert str(seen) == "nothing has changed"


def test_a_lazy_parameter_appears_and_meta_has_no_values():
    lazy = nn.LazyLinear(3)
    with watch(lazy) as seen:
        lazy(torch.ones(2, 4))
    assert {(m.name, m.how) for m in seen.moved} == {("weight", "added"), ("bias", "added")}
    meta = nn.Linear(2, 2, device="meta")
    with watch(meta) as seen:
        meta.weight.data.mul_(2)
    assert not seen.moved
    with watch(meta) as seen:
        meta.to_empty(device="cpu")
    assert {m.how for m in seen.moved} == {"device meta -> cpu"}


def test_bits_decide():
    layer = nn.BatchNorm1d(3)
    layer.running_mean.copy_(torch.tensor([math.nan, math.inf, 0.0]))
    with watch(layer) as seen:
        layer.running_mean.copy_(layer.running_mean.clone())
    assert not seen.moved  # a nan is what it was
    with watch(layer) as seen:
        layer.running_mean[2] = -0.0
    assert names(seen) == {"running_mean"}
    with watch(layer) as seen:
        layer.running_var[0] = math.nan
    assert math.isnan(seen.moved[0].by)


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float64, torch.complex64, torch.int8, torch.bool]
)
def test_every_dtype_has_a_distance(dtype):
    before = torch.tensor([[1, 0], [1, 1]], dtype=dtype).t()  # not contiguous
    after = before.clone()
    after[0, 1] = 0
    holder = nn.Module()
    holder.register_buffer("values", before)
    with watch(holder) as seen:
        holder.values = after
    wanted = 1.0 if dtype in (torch.int8, torch.bool) else 1 / math.sqrt(3)
    assert seen.moved[0].by == distance(before, after) == pytest.approx(wanted)


def test_spectral_norm_moves_in_training_only():
    layer = spectral_norm(nn.Linear(4, 4))
    with watch(layer) as seen:
        layer(torch.ones(1, 4))
    assert {m.kind for m in seen.moved} == {"buffer"}
    layer.eval()
    with watch(layer) as seen:
        layer(torch.ones(1, 4))
    assert not seen.moved


def test_tied_weights_are_told_once():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    with watch(model) as seen, torch.no_grad():
        model[1].weight.add_(1)
    assert names(seen) == {"0.weight"}


# ------------------------------------------------------------------------------------------------------------- switches


def test_switches_that_were_turned():
    model = Lines()
    model.body[1].eval()
    with watch(model) as seen:
        model.eval()
        model.head.requires_grad_(False)
    told = {(s.name, s.flag, s.before, s.after) for s in seen.switched}
    assert told == {
        *((name, "training", True, False) for name in (ROOT, "body", "body.0", "body.2", "head")),
        *((f"head.{name}", "requires_grad", True, False) for name in ("weight", "bias")),
    }
    assert not seen.moved


def test_a_switch_decides_what_the_module_computes():
    """The flags that are read are the ones that count: a dropout reported as on drops, one reported as off does not."""
    model, x = Lines(), torch.ones(64, 4)
    for mode in (False, True):
        model.body[2].train(not mode)
        with watch(model) as seen:
            model.body[2].train(mode)
        assert [(s.name, s.after) for s in seen.switched] == [("body.2", mode)]
        assert bool((model.body[2](x) == 0).any()) is mode


# ------------------------------------------------------------------------------------------------------------ the block


def test_what_the_block_raises_goes_through_and_is_looked_at():
    model = Lines()

    def torn(model):
        model.eval()
        model.seen += 3
        raise OSError("torn")

    with pytest.raises(OSError, match="torn"), watch(model) as seen:
        torn(model)
    assert names(seen) == {"seen"}
    assert len(seen.switched) == 6


def test_look_compares_inside_the_block_too():
    model = Lines()
    with watch(model) as seen:
        assert str(seen.look()) == "nothing has changed"
        model.seen += 3
        assert str(seen.look()) == "buffer seen changed by 3"
        model.seen -= 3
    assert not seen.moved


def test_parameters_may_be_left_out():
    model = Lines()
    with watch(model, parameters=False) as seen, torch.no_grad():
        model.head.weight.add_(1)
        model.seen += 1
    assert names(seen) == {"seen"}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_on_cuda_the_same_moves():
    model = Lines().cuda()
    with watch(model) as seen, torch.no_grad():
        model(torch.randn(8, 6, device="cuda"))
    assert names(seen) == {"seen", *(f"body.1.{name}" for name, _ in model.body[1].named_buffers())}
    with watch(model) as seen:
        model.cpu()
    assert not seen.moved
