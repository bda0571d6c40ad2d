"""What a loss is computed from, read off the graph behind it: probabilities for logits, shapes that do not fit."""

from collections.abc import Iterator

from breakfix.examine.events import Backward, Probe
from breakfix.examine.findings import CERTAIN, LIKELY, NOTE, Finding
from breakfix.examine.lines import Line
from breakfix.probes import _torch

# Operators that hand values on one by one, in another shape or dtype, or scaled.
RESHAPES = {
    "View", "UnsafeView", "ReshapeAlias", "Squeeze", "Unsqueeze", "Transpose", "Permute", "T", "Slice", "Select",
    "Index", "IndexSelect", "Expand", "Clone", "Alias", "ToCopy", "Contiguous", "Split", "Unbind", "Gather",
}  # fmt: skip
SCALES = RESHAPES | {"Mul", "Div", "Clamp", "ClampMin", "ClampMax"}
POINTWISE = {"Pow", "Abs", "Mul", "Div", "Neg", "Add", "Sub", "Exp", "Log", "Log1P", "Sqrt", "Where", "ToCopy"}
POINTWISE |= {"Log1p", "Square", "Huber", "SmoothL1", "Clamp", "Softplus", "LogSigmoid", "Maximum"}
REDUCES = {"Mean", "Sum"}
COMPARES = {"MseLoss", "SmoothL1Loss", "HuberLoss", "L1Loss"}
PREDICTS = {"Addmm", "Mm", "Mv", "Sigmoid", "Tanh", "Relu", "Softplus", "Exp"}  # what a prediction comes straight from


def op(node) -> str:
    """ "SoftmaxBackward0" is "Softmax"."""
    return node.name().partition("Backward")[0].rpartition("::")[2]


def inputs(node) -> list:
    """(node, which of its outputs) for each input that has a gradient."""
    return [(before, nth) for before, nth in node.next_functions if before is not None]


def shape(node, nth: int = 0) -> tuple[int, ...] | None:
    """Of an output that a node's operator had; a leaf's own."""
    if hasattr(node, "variable"):
        return tuple(node.variable.shape)
    try:
        return tuple(_torch.outputs_of(node)[nth].shape)
    except (IndexError, AttributeError, RuntimeError):
        return None


def source(node, through: set[str]):
    """The first node behind `node` that is no mere change of shape, or scale; None where that is not clear."""
    for _ in range(12):
        before = inputs(node)
        if len(before) != 1:
            return None
        node = before[0][0]
        if op(node) not in through:
            return node
    return None


class Losses(Probe):
    """Reads the graph at the first passes of each line that calls backward()."""

    name = "losses"

    def __init__(self, watch):
        super().__init__(watch)
        self.found: dict[tuple[str, Line], list] = {}

    def backward_begins(self, event: Backward) -> None:
        if not event.first_look:
            return
        above = _above(event.nodes)
        seen = {}
        for node in event.nodes:
            for name, rank, told, figures in (*_twice(node), *_broadcast(node, above)):
                seen.setdefault(name, (rank, told, figures))
        for name, what in seen.items():
            self.found.setdefault((name, event.line), [0, event.number, *what])[0] += 1

    def findings(self) -> list[Finding]:
        return [
            Finding(name, rank, f"{told}; so in {times} of the passes looked at", line, figures, first)
            for (name, line), (times, first, rank, told, figures) in self.found.items()
            if name != "broadcast-loss" or times > 1 or self.watch.backwards == 1
        ]


def _twice(node) -> Iterator[tuple]:
    kind = op(node)
    if kind == "LogSoftmax" and _is(of := source(node, SCALES), "Exp") and _is(source(of, RESHAPES), "LogSoftmax"):
        yield "double-softmax", CERTAIN, "log_softmax of exp(log_softmax), which are probabilities", {"of": "softmax"}
    elif kind == "LogSoftmax" and _is(source(node, SCALES), "Softmax", "Sigmoid"):
        of = op(source(node, SCALES)).lower()
        yield "double-softmax", CERTAIN, f"log_softmax of {of} of {_classes(node)} classes", {"of": of}
    elif kind == "LogSoftmax" and _is(source(node, RESHAPES), "LogSoftmax"):
        yield (
            "double-softmax",
            NOTE,
            "log_softmax of log_softmax, which changes nothing but costs",
            {"of": "log_softmax"},
        )
    elif kind == "BinaryCrossEntropyWithLogits" and _is(source(node, SCALES), "Sigmoid", "Softmax"):
        of = op(source(node, SCALES)).lower()
        yield "double-softmax", CERTAIN, f"binary_cross_entropy_with_logits of {of}", {"of": of}
    elif kind in ("NllLoss", "NllLoss2D"):
        of = source(node, RESHAPES)
        if _is(of, "Softmax", "Addmm", "Mm", "Convolution", "Sigmoid"):
            yield "nll-without-log", CERTAIN, f"nll_loss of the output of {op(of).lower()}", {"of": op(of)}
    elif kind == "Log" and _is(source(node, RESHAPES), "Softmax"):
        yield "log-of-softmax", NOTE, "log of softmax, two operators", {}


def _is(node, *kinds: str) -> bool:
    return node is not None and op(node) in kinds


def _classes(node) -> str:
    found = shape(node)
    return str(found[-1]) if found else "?"


def _above(nodes: list) -> dict:
    """To each node those that use its output."""
    above: dict = {}
    for node in nodes:
        for before, _ in inputs(node):
            above.setdefault(before, []).append(node)
    return above


def _broadcast(node, above: dict) -> Iterator[tuple]:
    """[N, 1] against [N], which makes [N, N]; with one side that has no gradient, on the way to a mean or sum."""
    kind = op(node)
    if kind not in ("Sub", "Mul", "Div", "Expand", "Add"):
        return
    whole, before = shape(node), inputs(node)
    if not whole or len(whole) != 2 or whole[0] != whole[1] or whole[0] < 2 or len(before) != 1:
        return
    part, n = shape(*before[0]), whole[0]
    if part not in ((n, 1), (n,)) or op(before[0][0]) == "Unsqueeze" or not _reduced(node, above):
        return
    straight = kind in ("Sub", "Expand") and (part == (n,) or op(before[0][0]) in PREDICTS)
    if kind == "Expand" and not any(op(user) in COMPARES for user in above.get(node, ())):
        return
    told = f"predictions {list(part)} against targets make {list(whole)} differences"
    yield "broadcast-loss", CERTAIN if straight else LIKELY, told, {"predictions": list(part), "made": list(whole)}


def _reduced(node, above: dict) -> bool:
    """Whether all that is done with it, value by value, ends in one mean or sum over everything."""
    for _ in range(8):
        users = above.get(node, [])
        if len(users) != 1:
            return False
        node = users[0]
        if op(node) in REDUCES | COMPARES and shape(node) == ():
            return True
        if op(node) not in POINTWISE:
            return False
    return False
