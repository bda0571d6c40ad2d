"""What claims/ledger.jsonl says about modules, loaders, checkpoints, metrics and versions, tried."""

import copy
import io
import os
import pickle
import subprocess
import sys
import warnings
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
import torchmetrics
import torchvision
from packaging.version import Version
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from breakfix.probes.memory import Card
from breakfix.probes.shards import simulated


def stack() -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(4, 4) for _ in range(50)))


def test_a_layer_of_sequential_can_be_named_hooked_replaced_and_frozen():
    model, fired = stack(), []
    assert [name for name, _ in model.named_children()] == [str(i) for i in range(50)]
    assert list(nn.Sequential(OrderedDict(stem=nn.ReLU(), head=nn.ReLU()))._modules) == ["stem", "head"]
    model[17].register_forward_hook(lambda m, i, out: fired.append(out.shape))
    model[17].requires_grad_(False)
    model[3] = nn.ReLU()
    model(torch.randn(2, 4))
    assert fired == [(2, 4)]
    assert model.get_submodule("17") is model[17]
    assert not model[17].weight.requires_grad
    assert model[18].weight.requires_grad
    assert len(model[:5]) == 5


def test_keys_shift_when_a_layer_is_inserted():
    old = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    new = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    new.load_state_dict(old.state_dict(), strict=False)
    assert torch.equal(new[1].weight, old[1].weight)  # which is not the last one any more


def test_no_library_here_has_a_resnetblock():
    assert not hasattr(nn, "ResNetBlock")
    assert not hasattr(torchvision.models.resnet, "ResNetBlock")


class Parent(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(OrderedDict(layer1=nn.Linear(4, 4), norm=nn.BatchNorm1d(4)))
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.backbone(x))


def test_a_part_can_be_reached_and_freezing_leaves_its_statistics():
    model, fired = Parent(), []
    model.backbone.layer1.register_forward_hook(lambda *_: fired.append(1))
    model.backbone.requires_grad_(False)
    before = model.backbone.norm.running_mean.clone()
    model(torch.randn(8, 4) + 3).sum().backward()
    assert fired == [1]
    assert [name for name, p in model.named_parameters() if p.grad is not None] == ["head.weight", "head.bias"]
    assert not torch.equal(model.backbone.norm.running_mean, before)


class Listed(nn.Module):
    def __init__(self, container):
        super().__init__()
        self.blocks = container(nn.Linear(4, 4) for _ in range(3))


def test_a_list_registers_nothing_and_a_module_list_does():
    assert len(list(Listed(list).parameters())) == 0
    assert len(list(Listed(nn.ModuleList).parameters())) == 6


def test_linear_starts_within_one_over_the_root_of_its_inputs():
    weight = nn.Linear(400, 300).weight
    assert 0.049 < weight.abs().max() <= 0.05


def test_sequential_needs_no_forward():
    assert nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))(torch.ones(1, 4)).shape == (1, 3)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_sync_batch_norm_is_for_gpus():
    model = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)))
    assert isinstance(model[1], nn.SyncBatchNorm)
    with simulated(2), pytest.raises(ValueError):  # noqa: PT011 (rule: no text of a library is matched)
        model(torch.randn(8, 4))


def test_ddp_wants_a_module_that_lies_on_its_device():
    with simulated(2), pytest.raises(ValueError):  # noqa: PT011
        nn.parallel.DistributedDataParallel(nn.Linear(2, 2), device_ids=[0])


# ------------------------------------------------------------------------------------------------------------- data


def test_a_loader_batches_what_a_dataset_gives_one_by_one():
    loader = DataLoader(TensorDataset(torch.randn(100, 32), torch.arange(100)), batch_size=64, shuffle=True)
    batches = list(loader)
    assert [x.shape for x, _ in batches] == [(64, 32), (36, 32)]
    assert sorted(torch.cat([y for _, y in batches]).tolist()) == list(range(100))
    assert {x.device.type for x, _ in batches} == {"cpu"}


@pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU it pins")
def test_without_a_gpu_pin_memory_is_ignored_with_a_warning():
    with pytest.warns(UserWarning):  # noqa: PT030
        (x,) = next(iter(DataLoader(TensorDataset(torch.ones(4)), pin_memory=True)))
    assert not x.is_pinned()


def test_images_of_two_sizes_are_no_batch():
    images = [torch.zeros(3, 4, 4), torch.zeros(3, 4, 5)]
    with pytest.raises(RuntimeError):
        next(iter(DataLoader(images, batch_size=2)))


# ------------------------------------------------------------------------------------------------------ checkpoints


class Saved(nn.Linear):
    pass


def saved(thing) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(thing, file)
    file.seek(0)
    return file


def test_a_state_dict_loads_by_default_and_a_whole_model_does_not():
    model = Saved(2, 2)
    checkpoint = {"model": model.state_dict(), "epoch": 3, "loss": torch.tensor(0.5)}
    assert torch.equal(torch.load(saved(checkpoint))["model"]["weight"], model.weight)
    with pytest.raises(pickle.UnpicklingError):
        torch.load(saved(model))
    assert isinstance(torch.load(saved(model), weights_only=False), Saved)


def test_a_whole_model_cannot_be_loaded_once_its_class_is_renamed(monkeypatch):
    file = saved(Saved(2, 2))
    monkeypatch.delitem(globals(), "Saved")
    with pytest.raises(AttributeError):
        torch.load(file, weights_only=False)


def resumed(kind, keep: bool) -> float:
    """How far a run that was resumed ends from one that was not."""
    torch.manual_seed(0)
    x, y = torch.randn(64, 4), torch.randn(64, 1)
    make = {"adam": lambda p: torch.optim.Adam(p, 0.05), "momentum": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9)}

    def steps(model, optimizer, count):
        for _ in range(count):
            optimizer.zero_grad()
            F.mse_loss(model(x), y).backward()
            optimizer.step()
        return model.weight.detach()

    model = nn.Linear(4, 1)
    optimizer = make[kind](model.parameters())
    steps(model, optimizer, 5)
    other = copy.deepcopy(model)
    again = make[kind](other.parameters())
    if keep:
        again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    return (steps(model, optimizer, 5) - steps(other, again, 5)).abs().max().item()


@pytest.mark.parametrize("kind", ["adam", "momentum"])
def test_without_its_state_an_optimizer_goes_another_way(kind):
    assert resumed(kind, keep=True) == 0
    assert resumed(kind, keep=False) > 0.01


def goes_on(*kept: str) -> bool:
    """Whether a run that is resumed from a model, its optimizer and `kept` ends like one that was never stopped."""
    x, y = torch.ones(8, 4), torch.ones(8, 4)

    def build():
        model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 3)

    def epochs(model, optimizer, scheduler, count):
        for _ in range(count):
            optimizer.zero_grad()
            F.mse_loss(model(x), y).backward()
            optimizer.step()
            scheduler.step()
        return model[0].weight.detach()

    torch.manual_seed(0)
    run, other = build(), build()
    epochs(*run, 2)
    for part, again in zip(run[:2], other[:2], strict=True):
        again.load_state_dict(copy.deepcopy(part.state_dict()))
    if "scheduler" in kept:
        other[2].load_state_dict(run[2].state_dict())
    generator = torch.get_rng_state()
    whole = epochs(*run, 4)
    if "generator" in kept:
        torch.set_rng_state(generator)
    return torch.equal(epochs(*other, 4), whole)


def test_a_resume_needs_the_schedule_and_the_generator_too():
    assert goes_on("scheduler", "generator")
    assert not goes_on("scheduler")
    assert not goes_on("generator")
    assert not goes_on()


@pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU it can be loaded")
def test_a_checkpoint_from_a_gpu_needs_map_location(monkeypatch):
    monkeypatch.setattr(torch.serialization, "location_tag", lambda storage: "cuda:0")
    file = saved({"w": torch.ones(3)})
    with pytest.raises(RuntimeError):
        torch.load(file)
    file.seek(0)
    assert torch.load(file, map_location="cpu")["w"].tolist() == [1, 1, 1]


# ----------------------------------------------------------------------------------------------- metrics and versions


def test_max_metric_never_falls_and_mean_metric_does_not_weigh():
    highest, mean, weighted = torchmetrics.MaxMetric(), torchmetrics.MeanMetric(), torchmetrics.MeanMetric()
    seen = []
    for accuracy in (0.5, 0.9, 0.4, 0.3):
        highest.update(accuracy)
        seen.append(round(highest.compute().item(), 1))
    assert seen == [0.5, 0.9, 0.9, 0.9]
    for value, size in ((1.0, 32), (0.0, 1)):
        mean.update(value)
        weighted.update(value, weight=size)
    assert mean.compute() == 0.5
    assert weighted.compute() == pytest.approx(32 / 33)


def test_reset_separates_two_intervals():
    mean = torchmetrics.MeanMetric()
    for start in (1, 101):
        mean.update(torch.arange(start, start + 100).float())
        assert mean.compute() == start + 49.5
        mean.reset()


def test_versions_are_no_strings():
    assert "2.14.1" < "2.9"  # as text
    assert Version(torch.__version__) > Version("2.9")
    assert not torch.__version__ < "2.0"  # this object knows
    assert type(torchvision.__version__) is str  # this one does not


def test_a_seed_gives_the_cpus_numbers_of_earlier_versions():
    numbers = torch.randn(3, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(numbers, torch.tensor([1.5410, -0.2934, -2.1788]), atol=5e-5)


def test_the_hash_of_a_tensor_is_its_identity():
    a, b = torch.ones(3), torch.ones(3)
    assert torch.equal(a, b)
    assert hash(a) != hash(b)


def test_bilinear_is_not_deprecated_and_antialias_changes_what_is_made_smaller():
    x = torch.randn(1, 1, 32, 32, generator=torch.Generator().manual_seed(0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        smaller, larger = (F.interpolate(x, scale_factor=s, mode="bilinear") for s in (0.5, 2.0))
    anti = [F.interpolate(x, scale_factor=s, mode="bilinear", antialias=True) for s in (0.5, 2.0)]
    assert (smaller - anti[0]).abs().max() > 0.1
    assert torch.allclose(larger, anti[1], atol=1e-5)
    with pytest.raises((ValueError, NotImplementedError, RuntimeError)):
        F.interpolate(x[0], scale_factor=0.5, mode="bilinear", antialias=True)  # three dimensions


def test_an_argument_that_was_removed_raises():
    optimizer = torch.optim.SGD([torch.ones(1)], 0.1)
    with pytest.raises(TypeError):
        torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, verbose=True)


def test_streams_and_the_compression_hook_have_the_names_that_are_given():
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    assert callable(default_hooks.fp16_compress_hook)
    assert callable(torch.cuda.Stream)
    assert callable(torch.Tensor.record_stream)


def test_the_old_launcher_is_deprecated():
    import torch.distributed.launch as launch

    assert "deprecated" in (launch.__doc__ + str(vars(launch.main))).lower()


def test_a_gradient_is_four_bytes_for_each_parameter():
    with Card("cpu") as card:
        layer = nn.Linear(100, 100, bias=False)
        card.add(layer)
        layer(torch.ones(1, 100)).sum().backward()
    assert layer.weight.grad.nbytes == 4 * 10_000
    assert card.in_use >= 8 * 10_000


def test_the_source_holds_no_such_sentence():
    root = Path(torch.__file__).parent
    files = [*root.rglob("*.py"), *(root / "include").rglob("*.h")]
    phrases = (b"set of primitives", b"not a library")
    found = [path for path in files if any(phrase in path.read_bytes().lower() for phrase in phrases)]
    assert len(files) > 2000
    assert found == []


@pytest.mark.skipif(sys.platform != "linux", reason="torchrun is tried on Linux only")
def test_torchrun_starts_as_many_processes_as_asked_for_and_sets_local_rank(tmp_path):
    file = tmp_path / "train.py"
    file.write_text("import os\nopen(os.environ['LOCAL_RANK'], 'w').close()\n")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=4", file]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True, timeout=120)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["0", "1", "2", "3", "train.py"]
