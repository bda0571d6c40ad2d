"""The counter of graphs against PyTorch's own, against eager results, and against what can be counted by hand."""

import pytest
import torch
from torch import nn
from torch._dynamo import config
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn import functional as F

from breakfix.probes.graphs import Counter, operators

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def _nothing_compiled_before():
    torch.compiler.reset()


def straight(x):
    return F.gelu(x * 2).sum()


def branch(x):
    y = x.exp()
    if y.sum() > 1:
        return y.sin() + 1
    return y.cos()


def told(x):
    y = x + 1
    print(end="")
    return y * 2


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x * self.calls


class Loop(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
            if x.sum() > 100:
                x = x / 2
        return x


def compiled(function, **options):
    counter = Counter()
    return counter, torch.compile(function, backend=counter, **options)


@pytest.mark.parametrize("function", [straight, branch, told])
def test_it_counts_what_pytorchs_own_counter_counts(function):
    own = CompileCounterWithBackend("eager")
    torch.compile(function, backend=own)(torch.ones(3))
    torch.compiler.reset()
    counter, run = compiled(function)
    assert torch.equal(run(torch.ones(3)), function(torch.ones(3)))
    assert len(counter.graphs) == own.frame_count
    assert sum(len(graph.ops) for graph in counter.graphs) == own.op_count


@pytest.mark.parametrize(("function", "graphs"), [(straight, 1), (branch, 2), (told, 2)])
def test_a_break_has_a_line_and_a_reason(function, graphs):
    counter, run = compiled(function)
    run(torch.ones(3))
    assert len(counter.graphs) == counter.runs == graphs
    assert sum(counter.breaks.values()) == graphs - 1
    if graphs > 1:
        [(at, why)] = counter.breaks
        first = function.__code__.co_firstlineno
        assert why
        assert at == f"test_probe_graphs.py:{first + 2}"


def test_explain_finds_the_same_breaks():
    explained = torch._dynamo.explain(branch)(torch.ones(3))
    torch.compiler.reset()
    counter, run = compiled(branch)
    run(torch.ones(3))
    assert (len(counter.graphs), sum(counter.breaks.values())) == (explained.graph_count, len(explained.break_reasons))


def test_a_number_that_changes_compiles_again_until_the_function_is_given_up():
    counter, run = compiled(Counting())
    limit = config.recompile_limit
    for call in range(1, limit + 3):
        assert run(torch.ones(2)).tolist() == [call, call]
    assert len(counter.graphs) == counter.runs == limit
    again = [a for a in counter.again if not a.gave_up]
    assert len(again) == limit - 1
    assert all("calls" in a.reason and "forward" in a.function for a in counter.again if not a.gave_up)
    assert any(a.gave_up and "forward" in a.function for a in counter.again)


def test_a_break_in_a_loop_leaves_no_graph_and_is_told_all_the_same():
    counter, run = compiled(Loop())
    run(torch.ones(2, 3))
    assert counter.graphs == []
    assert [a.gave_up for a in counter.again] == [True]
    assert operators(lambda: run(torch.ones(2, 3))).inside == {}


def test_what_was_compiled_before_is_not_counted():
    before, run = compiled(branch)
    run(torch.ones(3))
    counter, other = compiled(straight)
    other(torch.ones(3))
    assert (len(before.graphs), len(counter.graphs), counter.again) == (2, 1, [])


def test_operators_inside_and_outside():
    weight, x = torch.ones(3, 3), torch.ones(2, 3)

    def inner(x):
        return F.linear(x, weight).relu().sum()

    _, run = compiled(inner)
    run(x)
    seen = operators(lambda: run(x).mul(2).add(1))
    assert seen.inside == {"aten::linear": 1, "aten::relu": 1, "aten::sum": 1}
    assert seen.outside == {"aten::mul": 1, "aten::add": 1}


def test_an_eager_call_is_all_outside():
    assert operators(lambda: torch.ones(2).exp()).outside == {"aten::ones": 1, "aten::exp": 1}


def test_gradients_go_through():
    counter, run = compiled(straight)
    x, y = (torch.linspace(-1, 1, 5).requires_grad_() for _ in range(2))
    run(x).backward(), straight(y).backward()
    assert torch.equal(x.grad, y.grad)
    assert counter.runs == 1


def test_it_hands_on_to_a_backend_by_name():
    counter = Counter("aot_eager")
    assert torch.compile(straight, backend=counter)(torch.ones(3)).item() == straight(torch.ones(3)).item()
    assert len(counter.graphs) == 1


def test_counting_changes_no_count():
    """A probe that bumps a counter inside the graph would make it compile again: this one sits outside."""
    counter, run = compiled(straight)
    for _ in range(5):
        run(torch.ones(3))
    assert (len(counter.graphs), counter.runs, counter.again) == (1, 5, [])


def test_a_graph_that_torch_compile_has_not_made_says_so():
    counter = Counter()
    counter(torch.fx.symbolic_trace(straight), [torch.ones(3)])
    assert [graph.compile_id for graph in counter.graphs] == [""]


def test_the_report_names_function_guard_and_line():
    counter, run = compiled(Counting())
    run(torch.ones(2)), run(torch.ones(2))
    assert "1 x compiled again" in str(counter)
    counter, run = compiled(branch)
    run(torch.ones(3))
    assert "break at test_probe_graphs.py:" in str(counter)
