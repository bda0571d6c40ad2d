"""The contract: a breach names the function, what was wanted and what came."""

from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch

from breakfix.contract import Contract, describe, expect, expect_tensors, function

STUB = "loss_fn(logits, targets) -> Tensor"


def subject(**names) -> ModuleType:
    module = ModuleType("train")
    module.__file__ = "/home/somebody/lab08/train.py"
    module.__dict__.update(names)
    return module


def test_the_function_itself_is_returned():
    assert function(subject(loss_fn=print), STUB) is print


def test_a_class_or_a_partial_is_a_function_too():
    """A learner's structure is free: whatever can be called will do."""
    assert function(subject(loss_fn=torch.nn.Linear), STUB) is torch.nn.Linear


def test_a_missing_function_is_named_with_its_file_and_stub():
    with pytest.raises(
        Contract, match=r"^train\.py must define loss_fn\(logits, targets\) -> Tensor; it has none of that"
    ):
        function(subject(), STUB)


def test_something_else_of_that_name_is_described():
    with pytest.raises(Contract, match=r"there loss_fn is float32 tensor \[2\] on cpu"):
        function(subject(loss_fn=torch.zeros(2)), STUB)


def test_a_subject_without_a_file_is_still_named():
    """A measurement's idle subject is no module."""
    with pytest.raises(Contract, match="must define loss_fn"):
        function(SimpleNamespace(), STUB)


def test_expect_names_function_wanted_and_got():
    expect(True, "loss_fn", wanted="a 0-d tensor", got="None")
    with pytest.raises(Contract, match=r"^loss_fn must return a 0-d tensor; it returned None$"):
        expect(False, "loss_fn", wanted="a 0-d tensor", got="None")


def test_tensors_that_differ_are_named():
    like = {"weight": [2, 3], "bias": [2]}
    expect_tensors({"bias": [2], "weight": [2, 3]}, like, "build", "today's model")
    with pytest.raises(Contract, match=r"^build must return today's model; it returned bias missing, scale \[2\]$"):
        expect_tensors({"weight": [2, 3], "scale": [2]}, like, "build", "today's model")
    with pytest.raises(Contract, match=r"it returned weight \[3, 2\]$"):
        expect_tensors({"weight": [3, 2], "bias": [2]}, like, "build", "today's model")
    with pytest.raises(Contract, match=r"it returned a missing, b missing, c missing$"):
        expect_tensors({}, {key: [1] for key in "abcde"}, "build", "today's model")


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "None"), (3, "3"), (True, "True"), (float("nan"), "nan"), ("text", "'text'"),
        (torch.zeros(3, 4), "float32 tensor [3, 4] on cpu"), (torch.zeros(()).bfloat16(), "bfloat16 tensor [] on cpu"),
        (np.zeros((0, 2)), "float64 array [0, 2]"), (np.float32(1), "float32 array []"),
        ((1, 2), "tuple of 2"), ([], "list of 0"), ({"a": 1}, "dict of 1"),
        (torch.nn.Linear(1, 1), "a Linear"), (print, "a builtin_function_or_method"), (object(), "a object"),
    ],
)  # fmt: skip
def test_describe(value, words):
    assert describe(value) == words


def test_a_description_is_short():
    assert len(describe("x" * 10_000)) <= 80
