# starter: test_the_batch_does_not_matter test_vectors_equal_float64 test_the_first_word_equals_float64 test_later_words_equal_a_full_forward test_gradients_equal_float64
"""Each text is answered as if it were alone, and the batch still costs one pass."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from breakfix.checks import at_least, at_most, check
from breakfix.probes.parity import relative_error

ERROR = {torch.float32: 1e-4, torch.bfloat16: 0.1}  # a right one has 2e-6 and 0.02 at worst, a wrong one 0.5
HEADS = 4


@pytest.fixture(scope="module")
def reference(lab, inputs):
    """A Reference for each regime, with the weights as its dtype rounds them."""
    regimes = lab.measurement.REGIMES
    return {name: Reference(inputs["weights"], regime.dtype) for name, regime in regimes.items()}


class Reference:
    """The model in float64, one text at a time: no batch, no padding, no mask but the causal one, no cache."""

    def __init__(self, weights, dtype):
        self.w = {name: w.to(dtype).double().requires_grad_() for name, w in weights.items()}

    def vector(self, text):
        """[width] the mean of the encoder's outputs; zeros for a blank text."""
        return self.run("encoder", text).mean(0) if text else torch.zeros_like(self.w["norm.weight"])

    def logits(self, text):
        """[len(text), vocabulary] after each token."""
        return self.linear("head.", self.norm("norm.", self.run("decoder", text)))

    def run(self, kind, text):
        x = self.w["token.weight"][text] + self.w["position.weight"][: len(text)]
        names = ("attention.in_proj_", "attention.out_proj.") if kind == "encoder" else ("qkv.", "out.")
        for i in range(2):
            x = self.block(f"{kind}.{i}.", names, x)
        return x

    def block(self, at, names, x):
        q, k, v = self.linear(at + names[0], self.norm(f"{at}norm1.", x)).view(len(x), 3, HEADS, -1).permute(1, 2, 0, 3)
        scores = q @ k.transpose(1, 2) / q.shape[-1] ** 0.5
        if at.startswith("decoder"):
            scores = scores + torch.full(scores.shape[1:], -math.inf).double().triu(1)
        x = x + self.linear(at + names[1], (scores.softmax(-1) @ v).transpose(0, 1).flatten(1))
        return x + self.linear(f"{at}mlp.2.", F.gelu(self.linear(f"{at}mlp.0.", self.norm(f"{at}norm2.", x))))

    def linear(self, at, x):
        return x @ self.w[f"{at}weight"].T + self.w[f"{at}bias"]

    def norm(self, at, x):
        return F.layer_norm(x, x.shape[-1:], self.w[f"{at}weight"], self.w[f"{at}bias"])


def worst(got, want):
    """The largest relative error of any row; nan counts as infinite."""
    errors = [relative_error(a, b.detach().numpy()) for a, b in zip(got, want, strict=True)]
    return max(math.inf if math.isnan(error) else error for error in errors)


def said(reference, texts, tokens):
    """[texts, steps, vocabulary] float64's logits at each step, after the subject's own earlier words."""
    rows = [text + row.tolist()[:-1] for text, row in zip(texts, tokens, strict=True)]
    return [reference.logits(row)[-tokens.shape[1] :] for row in rows]


@check(points=2)
def test_the_batch_does_not_matter(evidence, lab):
    """A text gets the same vector and the same reply alone, in any company and at any place in the batch."""
    vectors, tokens, logits = (evidence[f"crowds.{what}"] for what in ("vectors", "tokens", "logits"))
    for i, crowd in enumerate(lab.measurement.CROWDS[1:], 1):
        at_most(f"the vector moves, {crowd}", relative_error(vectors[i], vectors[0]), 1e-4)
        at_most(f"the first word's logits move, {crowd}", relative_error(logits[i][0], logits[0][0]), 1e-4)
        same = len(tokens[0]) if (tokens[i] == tokens[0]).all() else int((tokens[i] != tokens[0]).argmax()) + 1
        at_most(f"the logits move, {crowd}", relative_error(logits[i][:same], logits[0][:same]), 1e-4)


@check(points=2)
def test_vectors_equal_float64(evidence, inputs, lab, reference):
    """Every vector equals the float64 reference, a blank text's too: an answer that is always wrong is steady as well."""
    for name, regime in lab.measurement.REGIMES.items():
        want = [reference[name].vector(text) for text in inputs["texts"][name]]
        at_most(f"vector error, {name}", worst(evidence[f"{name}.vectors"], want), ERROR[regime.dtype])


@check(points=2)
def test_the_first_word_equals_float64(evidence, inputs, lab, reference):
    """The logits after each prompt equal float64's, whatever the lengths of the others."""
    for name in lab.measurement.PROMPTED:
        want = [reference[name].logits(text)[-1] for text in inputs["texts"][name]]
        bound = ERROR[lab.measurement.REGIMES[name].dtype]
        at_most(f"error of the first logits, {name}", worst(evidence[f"{name}.logits"][:, 0], want), bound)
        at_least(f"tokens with the largest logit, {name}", evidence[f"{name}.likeliest"], 1.0)


@check(points=2)
def test_later_words_equal_a_full_forward(evidence, inputs, lab, reference):
    """The logits of each later word equal those of a full forward over the prompt and all words so far."""
    for name in lab.measurement.PROMPTED:
        want = said(reference[name], inputs["texts"][name], evidence[f"{name}.tokens"])
        got = np.moveaxis(evidence[f"{name}.logits"], 1, 0)
        errors = [worst(got[step], [row[step] for row in want]) for step in range(1, len(got))]
        at_most(f"error of later logits, {name}", max(errors), ERROR[lab.measurement.REGIMES[name].dtype])


@check(points=1)
def test_gradients_equal_float64(evidence, inputs, lab, reference):
    """The gradient of the vectors is float64's beside a blank text too, and a weight that is nan shows in every answer."""
    model = reference["blank"]
    vectors = torch.stack([model.vector(text) for text in inputs["texts"]["blank"]])
    (vectors * inputs["direction"]).sum().backward()
    want = torch.cat([(torch.zeros_like(w) if w.grad is None else w.grad).reshape(-1) for w in model.w.values()])
    at_most("gradient error, blank", relative_error(evidence["blank.gradient"], want), 1e-3)
    for name in ("vectors", "logits"):
        at_most(f"finite {name} of a model with a nan", evidence[f"poisoned.finite_{name}"], 0)


@check(points=1)
def test_a_batch_is_one_pass(evidence, inputs, lab):
    """A batch goes through the model together, once, and each further word costs one position more."""
    one_pass = lab.measurement.one_pass(inputs["texts"]["turns"])
    for name, (flops, products) in one_pass.items():
        at_most(f"{name}: operations against one pass", evidence[f"{name}.flops"] / flops, 2)
        at_most(f"{name}: products of matrices against one pass", evidence[f"{name}.products"] / products, 2)
