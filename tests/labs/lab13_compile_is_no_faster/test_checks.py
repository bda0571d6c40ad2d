# starter: test_one_graph_runs_per_call test_hardly_anything_runs_outside test_few_graphs_serve_every_shape
"""Every call runs in one graph, few graphs serve every shape, and the sorter computes and reports what it did."""

import numpy as np
import pytest
from torch.nn import functional as F

from breakfix.checks import at_least, at_most, check, equal
from breakfix.probes.parity import relative_error

BOUNDS = {"cpu": 1e-4, "cuda": 1e-3}  # float32 against float64
REGIMES = ("training", "evaluating", "training, later", "training, new shapes", "evaluating, new shapes")
GRAPHS, INSIDE = 6, 24
OUTSIDE = 24  # the starter's call has 35; dynamic=True makes inputs of Python numbers, by 12 more than others need


class Reference:
    """The sorter in float64, called as measure() calls the subject's."""

    def __init__(self, lab, inputs):
        self.model = lab.measurement.Sorter().double()
        self.model.load_state_dict({name: value.double() for name, value in inputs.parameters.items()})
        self.activity, self.limited, self.steps = [], [], 0

    def call(self, tokens, training):
        self.steps += training
        logits, activity, limited = self.model(tokens, self.steps if training else None)
        self.activity.append(activity)
        self.limited.append(limited)
        return logits

    def regime(self, name, batches):
        """Logits of all calls, and the gradients of each where it trains."""
        training = name.startswith("training")
        logits = [self.call(tokens, training) for tokens, _ in batches]
        gradients = [self.gradient(out, desks) for out, (_, desks) in zip(logits, batches, strict=True) if training]
        return np.concatenate([t.detach().numpy().ravel() for t in logits]), gradients

    def gradient(self, logits, desks):
        self.model.zero_grad()
        F.cross_entropy(logits, desks).backward()
        return np.concatenate([p.grad.numpy().ravel() for _, p in sorted(self.model.named_parameters())])


@pytest.fixture(scope="module")
def reference(lab, inputs):
    """Logits and gradients by regime, the activity of every call but the last, and which calls met the limit."""
    model = Reference(lab, inputs)
    found = {name: model.regime(name, batches) for name, batches in inputs.batches.items()}
    for name in ("training", "evaluating"):  # the two calls whose operators were counted
        model.call(inputs.batches[f"{name}, new shapes"][-1][0], name == "training")
    found["training, nothing to read"] = model.regime("training", [inputs.nothing])
    return found | {"activity": model.activity, "limited": model.limited}


@check(points=2)
def test_one_graph_runs_per_call(evidence):
    """Each call runs exactly one graph: each further one is a return to Python, and none at all is eager."""
    equal("graphs that torch.compile has not made", evidence["not_of_torch_compile"], 0)
    for name in REGIMES:
        runs = evidence[f"{name}.runs"]
        equal(f"fewest and most graphs run per call, {name}", [min(runs), max(runs)], [1, 1])


@check(points=2)
def test_hardly_anything_runs_outside(evidence):
    """The work is in the graph: what runs outside is launched operator by operator, as without torch.compile."""
    for name in ("training", "evaluating"):
        at_least(f"operators in the graph, {name}", evidence[f"{name}.inside"], INSIDE)
        at_most(f"operators outside, {name}", evidence[f"{name}.outside"], OUTSIDE)


@check(points=2)
def test_few_graphs_serve_every_shape(evidence):
    """A run of many shapes compiles a few graphs, and shapes that it has not met yet compile none."""
    at_most("graphs compiled", evidence["graphs"], GRAPHS)
    for name in REGIMES[3:]:
        equal(f"graphs compiled anew, {name}", evidence[f"{name}.new_graphs"], 0)
        at_least(f"fewest graphs run per call, {name}", min(evidence[f"{name}.runs"]), 1)


@check(points=2)
def test_logits_and_gradients_equal_float64(evidence, reference, device):
    """Every call computes what the sorter computed: warm-up and limit, in training and in evaluation."""
    for name in REGIMES:
        logits, gradients = reference[name]
        at_most(f"error of the logits, {name}", relative_error(evidence[f"{name}.logits"], logits), _near(device))
        pairs = zip(evidence[f"{name}.gradients"], gradients, strict=True) if gradients else ()
        worst = max((relative_error(*pair) for pair in pairs), default=0.0, key=lambda e: (e != e, e))  # a nan is worst
        at_most(f"largest error of a call's gradients, {name}", worst, _near(device))


@check(points=1)
def test_nothing_to_read_has_finite_gradients(evidence, reference, device):
    """A batch of padding alone has finite gradients: a branch that is not taken may still divide by zero in backward."""
    logits, [gradient] = reference["training, nothing to read"]
    found = evidence["training, nothing to read.gradients"][0]
    at_most("gradients not finite", int((~np.isfinite(found)).sum()), 0)
    at_most("error of the logits", relative_error(evidence["training, nothing to read.logits"], logits), _near(device))
    at_most("error of the gradients", relative_error(found, gradient), _near(device))


@check(points=1)
def test_activity_is_kept_and_a_nan_shows(evidence, reference, device):
    """The activity of every call is kept, in order, and a weight that is nan shows in it and in the logits."""
    *found, last = evidence["activity"].tolist() or [0.0]
    equal("activities kept", len(found) + 1, len(reference["activity"]) + 1)
    at_most("error of the activities", relative_error(found, reference["activity"]), _near(device))
    equal("a nan weight's activity is finite", bool(np.isfinite(last)), False)
    equal("a nan weight's logits are finite", bool(np.isfinite(evidence["spoiled.logits"][1]).any()), False)


def _near(device):
    return BOUNDS[device.type]
