# starter: test_fits_the_card test_little_is_reserved_in_vain test_a_word_does_not_move_the_cache
"""The files fit the card, the same answer comes out, and what is left afterwards is the result."""

import pytest
import torch
from torch.nn import functional as F

from breakfix.checks import at_least, at_most, check, equal
from breakfix.probes.parity import relative_error

HEADS = 4
ERROR = 1e-4  # float32 has 3e-6 at worst, keys and values in 16 bits 1e-3 and more
MIB = 2**20


class Reference:
    """The model in float64 over one whole file at a time: no cache, no passages."""

    def __init__(self, weights):
        self.w = {name: w.double() for name, w in weights.items()}

    def linear(self, at, x):
        return x @ self.w[f"{at}.weight"].T + self.w[f"{at}.bias"]

    def normed(self, at, x):
        return F.layer_norm(x, x.shape[-1:], self.w[f"{at}.weight"], self.w[f"{at}.bias"])

    def answer(self, file, words):
        """Features [tokens, width] of a file, and the logits [words, vocabulary] at each of the given words."""
        x = self.w["token.weight"][torch.cat([file, words])]
        for i in range(2):
            x = self.layer(f"layers.{i}", x, len(file))
        return x[: len(file)], self.linear("head", x[len(file) :])

    def layer(self, at, x, length):
        """Every token through the MLP; those after `length` attend to all up to themselves first."""
        y = self.normed(f"{at}.norm1", x)
        k, v = self.linear(f"{at}.key_value", y).view(len(x), 2, HEADS, -1).permute(1, 2, 0, 3)
        q = self.linear(f"{at}.query", y[length:]).view(len(x) - length, HEADS, -1).transpose(0, 1)
        scores = q @ k.transpose(1, 2) / q.shape[-1] ** 0.5
        later = torch.arange(len(x)) > torch.arange(length, len(x)).unsqueeze(1)
        found = (scores.masked_fill(later, -torch.inf).softmax(-1) @ v).transpose(0, 1).flatten(1)
        x = torch.cat([x[:length], x[length:] + self.linear(f"{at}.out", found)])
        return x + self.linear(f"{at}.mlp.2", F.gelu(self.linear(f"{at}.mlp.0", self.normed(f"{at}.norm2", x))))


@pytest.fixture(scope="module")
def reference(lab, inputs, evidence):
    """By regime: features at the secret places and logits in float64, after the subject's own earlier words."""
    model, row, found = Reference(inputs["weights"]), lab.measurement.ROW, {}
    for name in lab.measurement.REGIMES:
        words = torch.tensor([0, *evidence[f"{name}.tokens"].tolist()[:-1]])
        features, logits = model.answer(inputs["files"][name][row], words)
        found[name] = features[inputs["places"][name]].numpy(), logits.numpy()
    return found


@check(points=3)
def test_fits_the_card(evidence, lab):
    """A card of 160 MiB refuses nothing: not in all, which is measured, and not for want of one piece, which is modelled."""
    for name in lab.measurement.LARGE:
        card = lab.measurement.CARD / MIB
        at_most(f"alive at the peak, {name}", evidence[f"{name}.live_peak_mib"], card, unit="MiB")
        at_most(f"requests refused, {name} (modelled)", evidence[f"{name}.refused"], 0)


@check(points=2)
def test_little_is_reserved_in_vain(evidence, lab):
    """The allocator never reserves more than the card, without giving anything back, and little is written on the way."""
    for name in lab.measurement.LARGE:
        card, source = lab.measurement.CARD / MIB, evidence[f"{name}.source"]
        at_most(f"reserved at the peak, {name} ({source})", evidence[f"{name}.reserved_peak_mib"], card, unit="MiB")
        at_most(f"bytes written, {name}", evidence[f"{name}.written_mib"], 850, unit="MiB")


@check(points=2)
def test_a_word_does_not_move_the_cache(evidence, lab):
    """To write one more word, a small part of the cache's bytes is written: a cache is there to be read."""
    for name in lab.measurement.LARGE:
        at_most(f"written per word against the cache, {name}", evidence[f"{name}.written_per_word"], 0.2)


@check(points=2)
def test_answers_equal_float64(evidence, lab, reference):
    """Features and logits equal float64 over the whole file, on even, ragged, short and long passages."""
    for name in lab.measurement.REGIMES:
        features, logits = reference[name]
        at_most(f"feature error, {name}", relative_error(evidence[f"{name}.features"], features), ERROR)
        at_most(f"logit error, {name}", relative_error(evidence[f"{name}.logits"], logits), ERROR)
        at_least(f"words with the largest logit, {name}", evidence[f"{name}.likeliest"], 1.0)


@check(points=1)
def test_only_the_result_stays(evidence, lab, device):
    """A passage is encoded before the next is read; afterwards only the results are alive, on the device, in float32."""
    for name in lab.measurement.LARGE:
        written = evidence[f"{name}.encoded"]
        at_least(f"written before the next passage is read, against its features, {name}", written, 1.0)
        regime = lab.measurement.REGIMES[name]
        result = regime.files * (regime.length * lab.measurement.WIDTH + regime.words * lab.measurement.VOCABULARY) * 4
        at_most(f"alive afterwards against the result, {name}", evidence[f"{name}.left_mib"] * MIB / result, 1.3)
        equal(f"device of the features, {name}", evidence[f"{name}.device"], device.type)
        equal(f"dtype of the features, {name}", evidence[f"{name}.dtype"], "torch.float32")
