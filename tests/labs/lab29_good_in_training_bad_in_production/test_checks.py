# starter: test_photos_arrive_as_in_training test_every_kind_of_file_arrives_as_in_training test_turned_photos_arrive_upright test_answers_are_the_models test_damaged_files_are_refused
"""Production gives the model what training gave it, whatever the file is; and a file that is none is refused."""

import io

import numpy as np
import pytest
import torch
from PIL import Image

from breakfix.checks import at_least, at_most, check, equal

TENSOR = 1e-5  # right ones reach 1e-6 by another order of operations; one grey level is 0.017
SCORE = {"cpu": 1e-5, "cuda": 1e-3}
TURNS = {
    2: [Image.Transpose.FLIP_LEFT_RIGHT],
    3: [Image.Transpose.ROTATE_180],
    4: [Image.Transpose.FLIP_TOP_BOTTOM],
    5: [Image.Transpose.TRANSPOSE],
    6: [Image.Transpose.ROTATE_270],
    7: [Image.Transpose.TRANSVERSE],
    8: [Image.Transpose.ROTATE_90],
}


def wanted(file, lab):
    """What training makes of a file, float32 [3, CROP, CROP], step by step and without its code."""
    m = lab.measurement
    with Image.open(io.BytesIO(file)) as opened:
        image = opened
        for turn in TURNS.get(opened.getexif().get(m.ORIENTATION), []):
            image = image.transpose(turn)
        image = image.convert("RGB")
    size = [int(m.RESIZE * side / min(image.size)) for side in image.size]
    image = image.resize(size, Image.Resampling.BILINEAR)
    left, top = (round((side - m.CROP) / 2) for side in size)
    pixels = np.asarray(image, dtype=np.float64)[top : top + m.CROP, left : left + m.CROP] / 255
    return ((pixels - m.MEAN) / m.STD).transpose(2, 0, 1).astype(np.float32)


@pytest.fixture(scope="module")
def truth(inputs, lab):
    """What training makes of every whole file, by name."""
    return {name: wanted(file, lab) for name, file in inputs.whole.items()}


def compare(evidence, truth, side, names):
    """Each file's largest difference from what the model was trained on."""
    for name in names:
        error = float(np.abs(evidence[f"{side}.{name}"] - truth[name]).max())
        at_most(f"difference from what was trained on, {name}", error, TENSOR)


@check(points=2)
def test_photos_arrive_as_in_training(evidence, inputs, truth):
    """Of a plain photo the model gets what it was trained on: accuracy alone does not see every difference."""
    compare(evidence, truth, "serving", inputs.plain)


@check(points=2)
def test_every_kind_of_file_arrives_as_in_training(evidence, inputs, truth):
    """Grey, alpha, palette, CMYK, animated, a single row of pixels: what training can read, production reads so."""
    compare(evidence, truth, "serving", inputs.other)


@check(points=1)
def test_turned_photos_arrive_upright(evidence, inputs, truth):
    """A phone stores what its sensor saw and a tag; training has looked at the tag, so production must."""
    compare(evidence, truth, "serving", inputs.turned)


@check(points=2)
def test_answers_are_the_models(evidence, inputs, truth, device):
    """Every answer is that of the model, for what training makes of the file; so production is as often right."""
    bound = SCORE[device.type]
    for group in ("plain", "other", "turned"):
        names = list(getattr(inputs, group))
        with torch.no_grad():
            scores = inputs.model(torch.tensor(np.stack([truth[n] for n in names]))).double().softmax(dim=1).numpy()
        got = np.stack([evidence[f"scores.{name}"] for name in names])
        at_most(f"error of the scores, {group} files", float(np.abs(got - scores).max()), bound)
    offline, one = evidence["right.offline"], 1 / len(inputs.visits)  # of two that are as good as equal, either
    at_least("share of right answers in production", evidence["right.production"], offline - one)


@check(points=1)
def test_training_is_as_it_was(evidence, inputs, truth):
    """The model was trained on this: bending it towards production changes what is said, not what the model knows."""
    compare(evidence, truth, "training", inputs.whole)


@check(points=2)
def test_damaged_files_are_refused(evidence, inputs):
    """Half a file or none gets no answer, in training and in production; and a whole one after it gets its own."""
    for side in ("training", "serving", "scores"):
        answered = [name for name in inputs.damaged if f"{side}.{name}" not in evidence["raised"]]
        equal(f"damaged files that got an answer, {side}", ", ".join(answered) or "none", "none")
    refused = [key for key in evidence["raised"] if key.partition(".")[2] not in inputs.damaged]
    equal("whole files that were refused", ", ".join(refused) or "none", "none")
    first = next(iter(inputs.plain))
    again = float(np.abs(evidence["serving.again"] - evidence[f"serving.{first}"]).max())
    at_most("change of the first photo, asked for again at the end", again, 0.0)
