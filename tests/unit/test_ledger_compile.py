"""What claims/ledger.jsonl says about torch.compile, tried without a compiler: capture is what the claims are about."""

import logging

import pytest
import torch
import torchvision
from torch import nn

from breakfix.probes.graphs import Counter


@pytest.fixture(autouse=True)
def _nothing_compiled_before():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def test_the_default_backend_is_inductor(monkeypatch):
    import torch._inductor.compile_fx as inductor

    asked = []
    monkeypatch.setattr(inductor, "compile_fx", lambda graph, *_, **__: asked.append(1) or graph.forward)
    assert torch.equal(torch.compile(torch.sin)(torch.ones(2)), torch.ones(2).sin())
    assert asked == [1]


def test_inductor_writes_for_a_cpu_and_a_gpu_with_different_generators():
    from torch._inductor.codegen import common

    common.init_backend_registration()
    made = {device: common.get_scheduling_for_device(device) for device in ("cpu", "cuda")}
    assert made["cpu"](None).__class__.__name__ == "CppScheduling"
    assert made["cuda"](None).__class__.__name__ != "CppScheduling"


def test_a_size_that_changes_makes_one_more_graph_and_not_one_per_size():
    net = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU())
    graphs = {}
    for dynamic in (None, True):
        torch._dynamo.reset()
        counter = Counter()
        compiled = torch.compile(net, backend=counter, dynamic=dynamic)
        for size in range(8, 15):
            x = torch.randn(1, 1, size, size + 1)
            assert torch.equal(compiled(x), net(x))
        graphs[dynamic] = len(counter.graphs)
    assert graphs[True] <= graphs[None] <= 3


def branches(x):
    y = x * 2
    if y.sum() > 0:
        return y + 1
    return y - 1


def test_a_branch_on_a_value_parts_the_graph_and_the_parts_stay_compiled():
    counter = Counter()
    compiled = torch.compile(branches, backend=counter)
    for x, graphs in ((torch.ones(2), 2), (-torch.ones(2), 3)):
        assert torch.equal(compiled(x), branches(x))
        assert len(counter.graphs) == graphs
    assert all(graph.ops for graph in counter.graphs)


def test_where_makes_one_graph_of_it():
    counter = Counter()
    compiled = torch.compile(lambda x: torch.where((x * 2).sum() > 0, x * 2 + 1, x * 2 - 1), backend=counter)
    for x in (torch.ones(2), -torch.ones(2)):
        assert torch.equal(compiled(x), branches(x))
    assert len(counter.graphs) == 1


def test_print_parts_a_graph(capsys):
    counter = Counter()

    def talks(x):
        y = x * 2
        print(y)
        return y + 1

    torch.compile(talks, backend=counter)(torch.ones(2))
    assert len(counter.graphs) == 2
    assert capsys.readouterr().out == "tensor([2., 2.])\n"  # the value itself, as in eager code


class Records(logging.Handler):
    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


def test_verbose_does_not_tell_why_a_graph_ends():
    seen, logger = Records(), logging.getLogger("torch")
    logger.addHandler(seen)
    try:
        with torch._dynamo.config.patch(verbose=True):
            torch.compile(branches, backend="eager")(torch.ones(2))
    finally:
        logger.removeHandler(seen)
    assert seen.lines == []
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported):  # fullgraph does
        torch.compile(branches, backend="eager", fullgraph=True)(torch.ones(2))


@pytest.mark.parametrize("name", ["resnet18", "squeezenet1_1"])
def test_a_torchvision_model_in_training_is_one_graph(name):
    with torch.device("meta"):
        model, x = getattr(torchvision.models, name)(weights=None), torch.zeros(2, 3, 64, 64)
    counter = Counter()
    torch.compile(model, backend=counter, fullgraph=True)(x)
    assert len(counter.graphs) == 1


class Cond(nn.Module):
    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))


class Branch(nn.Module):
    def forward(self, x):
        return x + 1 if x.sum() > 0 else x - 1


def test_export_refuses_a_branch_on_a_value_and_takes_cond():
    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.export.export(Branch(), (torch.ones(2),), strict=True)
    program = torch.export.export(Cond(), (torch.ones(2),), strict=True).module()
    for x in (torch.ones(2), -torch.ones(2)):
        assert torch.equal(program(x), Branch()(x))
