"""Every kind of finding, in one table; and a finding."""

from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from breakfix.examine.lines import NOWHERE, Line

CERTAIN, LIKELY, NOTE = "certain", "likely", "note"
RANKS = (CERTAIN, LIKELY, NOTE)


class Kind(NamedTuple):
    """What a finding of this name says: the verdict, the lab where it can be tried, what to do next."""

    verdict: str
    lab: str
    step: str


KINDS = {
    # what the gradients are
    "zero-grad": Kind(
        "each backward pass adds to the gradients of the steps before: nobody clears them",
        "lab00", "call optimizer.zero_grad() once per step, before backward()",
    ),
    "cleared-gradients": Kind(
        "the optimizer steps on gradients that were cleared after backward()",
        "lab00", "move zero_grad() before backward() or behind step()",
    ),
    "no-gradient": Kind(
        "no parameter of this optimizer ever gets a gradient",
        "lab11", "look for .detach(), .item() or no_grad between model and loss; make the optimizer last",
    ),
    "never-steps": Kind(
        "backward() runs and nothing is updated: step() of this optimizer is never called",
        "lab11", "call optimizer.step() after backward()",
    ),
    "non-finite": Kind(
        "the loss is nan or inf",
        "lab08", "look at the operator named here, on the batch of this step",
    ),
    "non-finite-gradient": Kind(
        "the loss is finite and its gradient is not",
        "lab08", "look for sqrt, norm, division or log at zero, also in the branch that torch.where does not take",
    ),
    # what the loss is computed from
    "double-softmax": Kind(
        "the loss takes logits and gets probabilities: softmax or sigmoid is applied twice",
        "lab11", "give the loss the logits; apply softmax only where probabilities are shown",
    ),
    "nll-without-log": Kind(
        "nll_loss gets what is no log-probability",
        "lab11", "use cross_entropy on the logits, or log_softmax before nll_loss",
    ),
    "log-of-softmax": Kind(
        "log(softmax(x)) by hand: it is -inf where log_softmax is not",
        "lab08", "use log_softmax or cross_entropy",
    ),
    "broadcast-loss": Kind(
        "predictions and targets have different shapes: the loss compares each with all",
        "lab11", "give both the same shape: squeeze(-1) the one or unsqueeze(-1) the other",
    ),
    # who knows of the parameters
    "unregistered-parameters": Kind(
        "layers are used that the module does not register: nobody trains, moves or saves them",
        "lab11", "put them into nn.ModuleList or nn.ParameterList, or register them by name",
    ),
    "unowned-parameters": Kind(
        "parameters that the loss depends on are in no optimizer",
        "lab11", "make the optimizer last, with all parameters of the model; freeze what shall stay",
    ),
    "unused-parameters": Kind(
        "an optimizer holds parameters that never got a gradient",
        "lab02", "leave them out, or find where the graph between them and the loss is cut",
    ),
    # what is kept
    "graph-leak": Kind(
        "autograd graphs are kept: each step adds to what is alive",
        "lab04", "keep numbers, not tensors with a graph: .item() or .detach() before storing or adding up",
    ),
    # precision
    "clip-while-scaled": Kind(
        "gradients are clipped while they are still scaled by the GradScaler",
        "lab09", "call scaler.unscale_(optimizer) before clipping",
    ),
    "step-while-scaled": Kind(
        "the optimizer steps on scaled gradients",
        "lab09", "call scaler.step(optimizer) instead of optimizer.step()",
    ),
    "half-without-scaler": Kind(
        "gradients are float16 and nobody scales the loss: small ones become zero",
        "lab09", "use torch.amp.GradScaler, or bfloat16",
    ),
    "lost-updates": Kind(
        "updates are smaller than the low-precision weights can hold: they do not move",
        "lab09", "keep the weights in float32 and compute under autocast",
    ),
    # modes
    "eval-never-left": Kind(
        "after evaluation the model goes on training in eval mode",
        "lab12", "call model.train() at the start of each training epoch",
    ),
    "train-mode-evaluation": Kind(
        "the model is evaluated in training mode: dropout is on, and batch norm learns from the validation data",
        "lab12", "call model.eval() before evaluating and model.train() after",
    ),
    "grad-in-evaluation": Kind(
        "evaluation builds autograd graphs that nobody uses", "lab04", "evaluate under torch.no_grad()"
    ),
    "frozen-batchnorm-moves": Kind(
        "batch norm whose weights are frozen still learns its running statistics",
        "lab12", "keep it in eval mode: call eval() on it after each model.train()",
    ),
    # data
    "loader-wait": Kind(
        "the loop waits for its data",
        "lab16", "num_workers > 0, persistent_workers=True; then look at what one sample costs",
    ),
    "same-epoch-order": Kind(
        "every epoch has the same order: set_epoch() is never called",
        "lab21", "call sampler.set_epoch(epoch) at the start of each epoch",
    ),
    # steps
    "learning-rate-gone": Kind(
        "the learning rate has all but vanished for most of the run",
        "lab11", "step the scheduler once per epoch if its settings count epochs",
    ),
    "device-reads": Kind(
        "values are read from tensors many times per step: on a GPU each read waits",
        "lab14", "keep sums on the device and read them now and then",
    ),
    "recompiles": Kind(
        "torch.compile compiles the same function again and again",
        "lab13", "make what changes a tensor, or keep it out of the compiled function",
    ),
    "graph-breaks": Kind(
        "compiled code falls apart into several graphs", "lab13", "compile with fullgraph=True to see each reason"
    ),
    # ranks
    "sync-per-micro-batch": Kind(
        "gradients are sent to the other ranks in every backward pass, not once per step",
        "lab20", "use model.no_sync() for all micro-batches but the last",
    ),
    "ranks-differ": Kind(
        "the ranks did not call the same collectives",
        "lab21", "call collectives on all ranks or on none; look at what only one rank does",
    ),
}  # fmt: skip


@dataclass
class Finding:
    """One finding: its name and rank, the numbers behind it, and where in the person's own code."""

    name: str
    rank: str
    evidence: str  # a sentence with numbers
    line: Line = NOWHERE
    figures: dict[str, Any] = field(default_factory=dict)  # the same numbers for programs
    step: int | None = None  # when it was first seen
    lab: str = ""  # where another lab than the kind's is nearer

    def to_json(self) -> dict[str, Any]:
        """As it goes into a record."""
        return asdict(self) | {"line": list(self.line)}


def finding_of(data: dict[str, Any]) -> Finding:
    """The reverse of to_json."""
    return Finding(**(data | {"line": Line(*data["line"])}))
