"""The release gate: on every candidate of lab25, and as a command on every kind of model and of requests."""

import gc
import json
import sys
import textwrap

import numpy as np
import pytest
import torch

from breakfix import cli
from breakfix.catalog import Catalog
from breakfix.gate import BadReference, Limits, gate
from breakfix.gate_sources import BadSource, load_model, load_requests

LAB = Catalog.read()["lab25"].measurement
MODELS = """
    import time

    import torch
    from torch import nn

    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3)).eval()
    training = nn.Linear(6, 3)
    kept = []

    class Net(nn.Module):
        pass

    def today(x):
        return net(x)

    def wrong(x):
        print("a word of its own")
        return net(x).flip(1) if len(x) == 5 else net(x)

    def keeping(x):
        kept.append(net(x))
        return kept[-1]

    def slow(x):
        time.sleep(0.002)
        return net(x)

    def raising(x):
        raise RuntimeError("no kernel <b>")

    def writing(x):
        return net(x.mul_(2))

    def recorded():
        for i in range(120):
            yield torch.randn(1 + i % 5, 6)

    def silent():
        return iter(())

    def strange():
        return 7
"""


@pytest.fixture(autouse=True)
def objects_of_other_tests():
    """Out of the way: the gate looks through all there are, again and again."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A folder with models and requests of every kind."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "models.py").write_text(textwrap.dedent(MODELS), "utf-8")
    (tmp_path / "broken.py").write_text("import torch\nx = 1 / 0\n", "utf-8")
    for name in ("text.pt", "text.npz", "text.pt2", "text.onnx"):
        (tmp_path / name).write_text("not what its name says", "utf-8")
    return tmp_path


@pytest.fixture
def breakfix(monkeypatch, capsys):
    """The command line, in this process: exit code and what was printed."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["breakfix", "gate", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return ended.value.code or 0, *capsys.readouterr()

    return run


def put(candidate, *more, requests="models.py:recorded"):
    """Arguments that let time decide nothing, as this machine may be busy."""
    return "models.py:today", candidate, "--inputs", requests, "--ratio", 1e6, "--runs", 240, "--pairs", 3, *more


# --------------------------------------------------------------------------------------------------- what it must judge


@pytest.mark.parametrize("name", LAB.CASES)
def test_it_judges_every_candidate_of_lab25(name):
    given = LAB.inputs(seed=5)
    for again in range(LAB.CASES[name].tries):
        reference, candidate, requests, clock = LAB.put(name, given, 5, torch.device("cpu"), again)
        named = {f"request {i}": request for i, request in enumerate(requests)}
        report = gate(reference, candidate, named, clock, Limits(runs=1, pairs=25))
        assert LAB.right(name, [finding.reason for finding in report.findings], "")


def test_a_request_may_have_several_tensors_names_and_nan():
    def model(x, scale):
        return {"sum": x * scale, "rest": [x - scale]}

    x = torch.tensor([[float("nan"), 1.0]])
    requests = {"by name": {"x": x, "scale": torch.ones(1)}, "in order": (x, torch.ones(1))}
    report = gate(model, lambda x, scale: model(x, scale), requests, limits=Limits(runs=4, ratio=1e6))
    assert report.passed
    assert [latency.shape for latency in report.latencies] == ["[1, 2], [1]", "x [1, 2], scale [1]"]


def test_a_reference_that_raises_or_writes_is_no_measure():
    with pytest.raises(BadReference, match="first"):
        gate(lambda x: x.no, lambda x: x, {"first": torch.ones(1)})
    with pytest.raises(BadReference, match="writes"):
        gate(lambda x: x.add_(1), lambda x: x, {"first": torch.ones(1)})


def test_a_tolerance_of_ones_own_decides():
    requests = {"one": torch.ones(3)}
    limits = {bound: Limits(tolerance=bound, runs=1, ratio=1e6) for bound in (1e-3, 1e-1)}
    passed = {bound: gate(lambda x: x, lambda x: x * 1.05, requests, limits=limits[bound]).passed for bound in limits}
    assert passed == {1e-3: False, 1e-1: True}


def test_it_says_what_it_cannot_see():
    report = gate(lambda x: x, lambda x: x, {"one": torch.ones(3)}, limits=Limits(ratio=1e6))
    assert len(report.notes) == 2


# ---------------------------------------------------------------------------------------------------------- the command


def test_a_good_candidate_passes(breakfix):
    code, out, _ = breakfix(*put("models.py:today"))
    assert code == 0
    assert "✓ may go out" in out


@pytest.mark.parametrize(
    ("candidate", "reason"),
    [("wrong", "value"), ("keeping", "memory"), ("raising", "raises"), ("writing", "input")],
)
def test_a_bad_one_does_not_and_the_reason_is_named(breakfix, candidate, reason):
    code, out, _ = breakfix(*put(f"models.py:{candidate}", "--json"))
    told = json.loads(out)
    assert (code, told["passed"]) == (1, False)
    assert reason in [finding["reason"] for finding in told["findings"]]
    assert "✗ must not go out" in breakfix(*put(f"models.py:{candidate}"))[1]


def test_a_slow_one_is_named_with_its_shape(breakfix):
    arguments = [argument for argument in put("models.py:slow") if argument not in ("--ratio", 1e6)]
    code, out, _ = breakfix(*arguments, "--json")
    assert code == 1
    assert [finding["reason"] for finding in json.loads(out)["findings"]] == ["latency"]
    assert {latency["shape"] for latency in json.loads(out)["latencies"]} == {f"[{rows}, 6]" for rows in range(1, 6)}


def test_an_exported_program_and_files_of_requests(breakfix, folder):
    program = torch.export.export(
        load_model("models.py:net"), (torch.randn(4, 6),), dynamic_shapes=[{0: torch.export.Dim("rows", min=2)}]
    )
    torch.export.save(program, "net.pt2")
    torch.save([torch.randn(3, 6), (torch.randn(4, 6),)], "requests.pt")
    np.savez("requests.npz", few=np.ones((2, 6), np.float32), many=np.ones((9, 6), np.float32))
    for requests in ("requests.pt", "requests.npz"):
        code, out, _ = breakfix(*put("net.pt2", requests=requests))
        assert code == 0, out


def test_an_exported_program_that_knows_one_shape_only_raises(breakfix):
    net = load_model("models.py:net")
    torch.export.save(torch.export.export(net, (torch.randn(4, 6),)), "fixed.pt2")
    code, out, _ = breakfix(*put("fixed.pt2"))
    assert code == 1
    assert "raises" in out


def test_an_onnx_file(breakfix):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    net = load_model("models.py:net")
    torch.onnx.export(net, (torch.randn(4, 6),), "net.onnx", dynamic_shapes=[{0: "rows"}], verbose=False)
    code, out, _ = breakfix(*put("net.onnx"))
    assert code == 0, out


def test_without_onnxruntime_an_onnx_file_is_a_matter_of_environment(breakfix, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    code, _, err = breakfix(*put("text.onnx"))
    assert code == 3
    assert "onnxruntime" in err


def test_a_module_on_the_path_and_a_name_with_dots(breakfix, folder):
    (folder / "served.py").write_text("import models\nbox = models\n", "utf-8")
    assert breakfix(*put("served:box.today"))[0] == 0


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("models.py:missing", "has no missing"),
        ("models.py:Net", "is a class"),
        ("models.py:training", "training mode"),
        ("nowhere.py:today", "no such file"),
        ("broken.py:today", "ZeroDivisionError"),
        ("no_such_module_here:today", "there is no module"),
        ("models.py", "name a function"),
        ("text.pt2", "torch.export.save"),
    ],
)
def test_a_model_that_cannot_be_used_is_explained(source, told):
    with pytest.raises(BadSource, match=told):
        load_model(source)


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("text.pt", "without running"),
        ("text.npz", "plain arrays"),
        ("nowhere.pt", "no such file"),
        ("models.py:silent", "no request"),
        ("models.py:strange", "int|7"),
        ("models.py:raising", "TypeError"),
        ("requests.csv", "name a file of tensors"),
    ],
)
def test_requests_that_cannot_be_used_are_explained(source, told):
    with pytest.raises(BadSource, match=told):
        load_requests(source)


def test_a_pickle_of_code_is_not_run(folder):
    class Payload:
        def __reduce__(self):
            return open, (str(folder / "was_run"), "w")

    torch.save([torch.ones(1), Payload()], "bad.pt")
    with pytest.raises(BadSource, match="without running"):
        load_requests("bad.pt")
    assert not (folder / "was_run").exists()


@pytest.mark.parametrize("bad", [("models.py:missing",), ("models.py:today", "--html", "no/such/page.html")])
def test_a_wrong_use_is_told_as_one(breakfix, bad):
    code, _, err = breakfix(*put(*bad))
    assert code == 2
    assert "Error" in err


# ------------------------------------------------------------------------------------------------------------- the page


def test_the_page_stands_alone_and_escapes_what_a_candidate_says(breakfix, folder):
    code, _, _ = breakfix(*put("models.py:raising", "--html", "gate.html"))
    page = (folder / "gate.html").read_text("utf-8")
    assert code == 1
    assert "must not go out: raises" in page
    assert "&lt;b&gt;" in page
    assert "<b>&quot;" not in page
    assert "prefers-color-scheme: dark" in page
    assert not any(word in page for word in ("http:", "https:", "<script", "src=", "@import", "url("))


def test_the_page_of_a_good_one_shows_times_and_memory(breakfix, folder):
    breakfix(*put("models.py:today", "--html", "gate.html"))
    page = (folder / "gate.html").read_text("utf-8")
    assert "✓ may go out" in page
    assert page.count("<rect") == 5
    assert "tensors alive" in page
