"""Production: onnxruntime and no torch. Opens an artifact, answers requests, and says what it saw in model.onnx.

python production.py ARTIFACT REQUESTS.npz ANSWERS.npz DEVICE [SERVE.py]
"""

import json
import sys
import traceback
from pathlib import Path

import numpy as np

sys.modules["torch"] = None  # importing it raises ImportError, as where it is not installed


def main(artifact: Path, requests: Path, answers: Path, device: str, shipped: Path | None = None) -> None:
    report = inspect(artifact / "model.onnx")
    import onnxruntime

    onnxruntime.set_default_logger_severity(4)  # what fails is raised as well
    report["provider"] = provider = provider_for(device)
    serve = load(shipped) if shipped else default_serve
    answer = serve(artifact) if shipped else default_serve(artifact, provider)
    arrays, report["errors"] = {}, {}
    for name, request in read(requests).items():
        try:
            arrays |= {f"{name}/{output}": array for output, array in checked(answer(request)).items()}
        except Exception as error:
            if not report["errors"] and not name.startswith("token"):  # those are there to be refused
                traceback.print_exc()  # one is enough to see why
            report["errors"][name] = type(error).__name__
    report["torch"] = sys.modules.get("torch") is not None
    np.savez(answers, report=json.dumps(report), **arrays)


def inspect(path: Path) -> dict:
    """Opset, axes of every input (a name where free, else a number) and the checker's opinion."""
    import onnx

    model = onnx.load(path, load_external_data=False)
    axes = {
        value.name: [axis.dim_param or axis.dim_value for axis in value.type.tensor_type.shape.dim]
        for value in model.graph.input
    }
    opset = next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), 0)
    try:
        onnx.checker.check_model(path, full_check=True)
        checker = "passed"
    except Exception as error:
        checker = type(error).__name__
    return {"opset": opset, "axes": axes, "checker": checker}


def provider_for(device: str) -> str:
    """Where the session runs: on the card if there is one and onnxruntime can use it."""
    import onnxruntime

    card = "CUDAExecutionProvider"
    return card if device == "cuda" and card in onnxruntime.get_available_providers() else "CPUExecutionProvider"


def default_serve(artifact: Path, provider: str):
    """One session on model.onnx."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(artifact / "model.onnx", options, providers=[provider])
    outputs = [value.name for value in session.get_outputs()]
    return lambda request: dict(zip(outputs, session.run(None, request), strict=True))


def load(path: Path):
    """The shipped serve function."""
    names: dict = {}
    exec(compile(path.read_text("utf-8"), str(path), "exec"), names)
    return names["serve"]


def read(path: Path) -> dict[str, dict[str, np.ndarray]]:
    """The requests by name, each a dict of arrays."""
    requests: dict[str, dict[str, np.ndarray]] = {}
    with np.load(path) as arrays:
        for key in arrays.files:
            name, _, part = key.partition("/")
            requests.setdefault(name, {})[part] = arrays[key]
    return requests


def checked(answer: object) -> dict[str, np.ndarray]:
    """An answer is a dict of plain arrays."""
    if not isinstance(answer, dict) or not all(
        isinstance(a, np.ndarray) and a.dtype != object for a in answer.values()
    ):
        raise TypeError("an answer must be a dict of numpy arrays")
    return answer


if __name__ == "__main__":
    artifact, requests, answers, device, *shipped = sys.argv[1:]
    main(Path(artifact), Path(requests), Path(answers), device, *map(Path, shipped))
