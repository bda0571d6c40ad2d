# starter: test_categories test_salience test_served_equals_eager test_unknown_tokens_are_refused
"""Production answers every request of the declared sizes as the model does, whatever the exporter's example was."""

import numpy as np

from breakfix.checks import at_least, at_most, check, equal

WINDOW, HEAD, TAIL = 8, 6, 2


def text_reference(weights, tokens):
    """categories and salience in float64, in NumPy: the original model, title by title."""
    w = {name: value.astype(np.float64) for name, value in weights.items()}
    length = tokens.shape[1]
    steps = np.arange(length)[:, None] / max(length, WINDOW)
    hidden = np.tanh(
        (w["embed.weight"][tokens] + steps * w["positions.direction"]) @ w["encode.weight"].T + w["encode.bias"]
    )
    salience = hidden @ w["salience.weight"][0] + w["salience.bias"][0]
    read = hidden if length <= WINDOW else np.concatenate([hidden[:, :HEAD], hidden[:, -TAIL:]], axis=1)
    return {"categories": read.mean(axis=1) @ w["classify.weight"].T + w["classify.bias"], "salience": salience}


def thumbnail_reference(photo, exact_size):
    """Half the size through a triangle filter whose step is 2 or, for the exact size, the ratio of the sizes."""
    halves = [_halving(side, side / (side // 2) if exact_size else 2.0) for side in photo.shape[2:]]
    return halves[0] @ photo.astype(np.float64) @ halves[1].T


def _halving(side, step):
    """[side // 2, side]: the share of each pixel in each pixel of the thumbnail."""
    centres = (np.arange(side // 2)[:, None] + 0.5) * step
    share = np.maximum(0, 1 - np.abs(np.arange(side) + 0.5 - centres) / step)
    return share / share.sum(axis=1, keepdims=True)


def worst(evidence, lab, wanted):
    """The largest |got - want| / (1 + |want|) over {(request, output): wanted}; inf where an answer is missing."""
    apart = lab.measurement.apart
    errors = [apart(evidence.get(f"served.{r}.{o}"), want.astype(np.float32)) for (r, o), want in wanted.items()]
    return float(np.max(errors, initial=0.0))  # a nan in one is a nan in all


def text_errors(evidence, inputs, lab, output):
    """The worst error of one output over titles that fit the window, and over longer ones."""
    wanted = {
        (name, output): text_reference(inputs.weights, request.tokens)[output]
        for name, request in inputs.requests.items()
    }
    short = {key: want for key, want in wanted.items() if inputs.requests[key[0]].length <= WINDOW}
    long = {key: want for key, want in wanted.items() if key not in short}
    return worst(evidence, lab, short), worst(evidence, lab, long)


@check(points=2)
def test_categories(evidence, inputs, lab, device):
    """The categories are right for titles of every length: short ones, and those of which only a part is read."""
    short, long = text_errors(evidence, inputs, lab, "categories")
    bound = lab.measurement.TOLERANCE[device.type]
    at_most("error of the categories, titles up to 8 tokens", short, bound)
    at_most("error of the categories, longer titles", long, bound)


@check(points=1)
def test_salience(evidence, inputs, lab, device):
    """Every token's salience is right, at any length: it shows what the model believes about positions."""
    short, long = text_errors(evidence, inputs, lab, "salience")
    bound = lab.measurement.TOLERANCE[device.type]
    at_most("error of the salience, titles up to 8 tokens", short, bound)
    at_most("error of the salience, longer titles", long, bound)


@check(points=1)
def test_thumbnails(evidence, inputs, lab, device):
    """Thumbnails are antialiased halves, odd sides too: by the factor 0.5 or to the exact size, the same everywhere."""
    errors = []
    for exact_size in (False, True):
        wanted = {
            (name, "thumbnail"): thumbnail_reference(request.photo, exact_size)
            for name, request in inputs.requests.items()
        }
        even = {key: want for key, want in wanted.items() if not inputs.requests[key[0]].odd}
        odd = {key: want for key, want in wanted.items() if key not in even}
        errors.append((worst(evidence, lab, odd), worst(evidence, lab, even)))
    odd, even = min(errors)
    bound = lab.measurement.TOLERANCE[device.type]
    at_most("error of the thumbnails, even sides", even, bound)
    at_most("error of the thumbnails, odd sides", odd, bound)


@check(points=3)
def test_served_equals_eager(evidence, inputs, lab, device):
    """What is served equals what this very model answers in PyTorch: one model must not have two meanings."""
    bound = lab.measurement.TOLERANCE[device.type]
    groups = {
        "photos with even sides": ("thumbnail", lambda request: not request.odd),
        "photos with odd sides": ("thumbnail", lambda request: request.odd),
        "text": ("categories", "salience", lambda request: True),
    }
    for group, (*outputs, belongs) in groups.items():
        names = [name for name, request in inputs.requests.items() if belongs(request)]
        wanted = {(name, output): evidence[f"eager.{name}.{output}"] for name in names for output in outputs}
        at_most(f"served against PyTorch, {group}", worst(evidence, lab, wanted), bound)


@check(points=1)
def test_requests_are_answered(evidence, inputs):
    """No size within the declared range raises, a single title included; and torch is not there to help."""
    failed = [name for name in evidence["production.errors"] if name in inputs.requests]
    single = [name for name in failed if inputs.requests[name].tokens.shape[0] == 1]
    at_most("requests for one title that raised", len(single), 0)
    at_most(f"requests that raised, of {len(inputs.requests)}", len(failed), 0)
    equal("torch was imported in production", evidence["production.torch"], False)


@check(points=1)
def test_unknown_tokens_are_refused(evidence, inputs):
    """A token that the vocabulary does not have raises, as it does in PyTorch: nonsense must not get categories."""
    if evidence["production.provider"] != "CPUExecutionProvider":
        return  # the card's Gather does not look at an index: there only a serve of one's own can refuse
    answered = [name for name in inputs.bad if name not in evidence["production.errors"]]
    below = sum(inputs.bad[name].tokens.min() < 0 for name in answered)
    at_most("requests with a token above the vocabulary that were answered", len(answered) - below, 0)
    at_most("requests with a token below the vocabulary that were answered", below, 0)


@check(points=1)
def test_the_file(evidence, lab):
    """model.onnx is valid, has the opset that production reads, and leaves batch, length, height and width free."""
    equal("onnx.checker", evidence["file.checker"], "passed")
    at_least("opset in the file", evidence["file.opset"], lab.measurement.OPSET)
    axes = evidence["file.axes"]
    equal("inputs of the file", bool(axes), True)
    fixed = [f"{name}[{i}]" for name, free in lab.measurement.FREE.items() for i in free if _fixed(axes.get(name), i)]
    equal("axes of the file that are fixed", " ".join(fixed) or "none", "none")


def _fixed(axes, index):
    """A free axis has a name; an input that the file lacks is somebody else's."""
    return axes is not None and (index >= len(axes) or not isinstance(axes[index], str))
