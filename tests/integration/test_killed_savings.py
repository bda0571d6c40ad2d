"""The checkpoint of lab30's solution survives fifty real kills; the broken file's does not survive the same."""

import os
import random
import signal
import time
from pathlib import Path

import pytest
import torch

from breakfix import subject
from breakfix.catalog import Catalog
from breakfix.child import CAN_FORK

pytestmark = pytest.mark.skipif(not CAN_FORK, reason="kills children that were forked")
CPU, KILLS = torch.device("cpu"), 50


@pytest.fixture(scope="module")
def lab():
    return Catalog.read()["lab30"]


def killed_while_saving(file, run, path: Path, after: float) -> None:
    """A child saves the run over and over, and is killed so many seconds after it has begun."""
    ready, begun = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(begun, b"x")
        while True:
            file.save(run, path)
    os.read(ready, 1)
    time.sleep(after)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(ready), os.close(begun)


def lost(lab, source: Path, folder: Path) -> int:
    """After how many of the kills there was no checkpoint to resume."""
    file, given, chance = subject.load(source.read_bytes(), str(source)), lab.measurement.inputs(30), random.Random(30)
    run, path, count = file.start(given.training, given.validation, 1, CPU), folder / "run.pt", 0
    file.train(run, 10)
    for _ in range(KILLS):
        file.save(run, path)
        killed_while_saving(file, run, path, after=chance.uniform(0, 0.03))
        try:
            again = file.resume(path, given.training, given.validation, CPU)
            same = zip(again.model.parameters(), run.model.parameters(), strict=True)
            count += not all(torch.equal(a, b) for a, b in same)
        except Exception:
            count += 1
    return count


def test_the_fixed_file_has_a_checkpoint_after_each_of_fifty_kills(lab, tmp_path):
    assert lost(lab, lab.solution, tmp_path) == 0


def test_the_broken_file_has_lost_it_after_some(lab, tmp_path):
    assert lost(lab, lab.starter, tmp_path) > 0
