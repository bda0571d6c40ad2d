"""The pytest plugin: checks read the evidence of one subject and compare it with what they compute themselves.

A check is a plain test in tests/labs/LAB/test_checks.py. Its fixtures are `lab`, `inputs`, `evidence`, `outside`,
`seed` and `device`; with `at_most`, `at_least` and `equal` it records every figure that it looks at, passed or not.

    pytest tests/labs/LAB --subject FILE        measures FILE elsewhere, asserts here: -k, -x and --pdb work
    (the judge)                                 hands over the evidence that it has already

Three ways to not pass: an assertion (`failed`), `not_measurable` (what was seen inside and outside disagree), and any
other exception (a fault of the check itself; the verdict is then an error, never a pass).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from breakfix import evidence as frames
from breakfix.catalog import Lab, read_lab
from breakfix.verdict import FAILED, NOT_MEASURABLE, PASSED, CheckResult, Figure

_looked: list[Figure] = []  # of the check that is running


class NotMeasurable(Exception):
    """What an instrument saw inside the subject's process and what was seen from outside disagree."""


class FaultyCheck(Exception):
    """A check broke on its own account; no verdict can rest on it."""


def check(*, points: int):
    """Mark a test as a check that is worth `points`."""
    return pytest.mark.check(points=points)


def at_most(what: str, value: float, bound: float, unit: str = "") -> None:
    """Record `value` and demand value <= bound; nan fails."""
    __tracebackhide__ = True  # so that --pdb stops in the check, where the evidence is
    _look(what, value, "<=", bound, unit, value <= bound, "at most")


def at_least(what: str, value: float, bound: float, unit: str = "") -> None:
    """Record `value` and demand value >= bound; nan fails."""
    __tracebackhide__ = True
    _look(what, value, ">=", bound, unit, value >= bound, "at least")


def equal(what: str, value: Any, wanted: Any, unit: str = "") -> None:
    """Record `value` and demand that it equals `wanted`; arrays in dtype, shape and every element."""
    __tracebackhide__ = True
    _look(what, value, "==", wanted, unit, _same(value, wanted), "wanted")


def not_measurable(reason: str) -> None:
    """Say that no verdict is possible: inside and outside disagree."""
    __tracebackhide__ = True
    raise NotMeasurable(reason)


def _look(what: str, value: Any, relation: str, bound: Any, unit: str, holds: Any, words: str) -> None:
    __tracebackhide__ = True
    holds = bool(holds)
    _looked.append(Figure(what, _brief(value), relation, _brief(bound), unit, holds))
    if not holds:  # not by `assert`, which python -O leaves out
        raise AssertionError(f"{what}: {_brief(value)}{' ' * bool(unit)}{unit}, {words} {_brief(bound)}")


def _same(value: Any, wanted: Any) -> bool:
    if isinstance(value, np.ndarray) or isinstance(wanted, np.ndarray):
        value, wanted = np.asarray(value), np.asarray(wanted)
        return value.dtype == wanted.dtype and value.shape == wanted.shape and bool(np.array_equal(value, wanted))
    value, wanted = (v.item() if isinstance(v, np.generic) else v for v in (value, wanted))
    return type(value) in (type(wanted), int, float, bool) and value == wanted


def _brief(value: Any) -> Any:
    """What a figure shows: a number as it is, all else in a few words."""
    if isinstance(value, np.ndarray) and value.size > 8:
        return f"{value.dtype} array {list(value.shape)}"
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, bool | int | float) or value is None:
        return value
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 120 else text[:117] + "..."


# ------------------------------------------------------------------------------------------- where the evidence is from


@dataclass(frozen=True)
class Given:
    """Evidence that is there already, and what was seen from outside while it was made."""

    lab: Lab
    frame: bytes
    outside: Mapping[str, float]
    seed: int
    device: str


class Measured:
    """Evidence measured on demand, in another process, for pytest run by hand."""

    def __init__(self, subject: str, seed: int | None, device: str):
        self.subject, self.seed, self.device = subject, seed, device
        self._given: dict[str, Given] = {}
        self._engine = None

    def of(self, lab: Lab) -> Given:
        if lab.folder not in self._given:
            self._given[lab.folder] = self._measure(lab)
        return self._given[lab.folder]

    def start(self) -> None:
        """Let the zygote import torch while pytest collects."""
        from breakfix.zygote import Engine

        self._engine = Engine()
        self._engine.start()

    def close(self) -> None:
        if self._engine:
            self._engine.close()

    def _measure(self, lab: Lab) -> Given:
        from breakfix.judge import fresh_seed

        path = {"solution": lab.solution, "starter": lab.starter}.get(self.subject, Path(self.subject))
        verdict = self._engine.judge(
            lab, path, self.seed if self.seed is not None else fresh_seed(), self.device, ask=False
        )
        if not verdict.frame:
            pytest.fail(f"{path}: {verdict.state}\n{verdict.detail}\n{verdict.log}".rstrip(), pytrace=False)
        return Given(lab, verdict.frame, verdict.outside, verdict.seed, verdict.device)


class _Source:
    """The plugin object that tells the fixtures where evidence comes from."""

    def __init__(self, given: Given | None = None, measured: Measured | None = None):
        self._given, self.measured = given, measured

    def of(self, lab: Lab) -> Given:
        return self._given or self.measured.of(lab)


_SOURCE = pytest.StashKey[_Source]()


def pytest_addoption(parser):
    group = parser.getgroup("breakfix", "labs")
    group.addoption("--subject", metavar="FILE", help="the file to judge by tests/labs; or `solution`, or `starter`")
    group.addoption("--seed", type=int, help="the seed of every secret input (default: a fresh one)")
    group.addoption("--device", default="cpu", help="cpu or cuda (default: cpu)")


def pytest_configure(config):
    if config.stash.get(_SOURCE, None) is None and config.getoption("--subject", None):
        subject = config.getoption("--subject")
        if subject not in ("solution", "starter") and not Path(subject).is_file():
            raise pytest.UsageError(f"--subject {subject}: there is no such file")
        measured = Measured(subject, config.getoption("--seed"), config.getoption("--device"))
        config.stash[_SOURCE] = _Source(measured=measured)
        measured.start()


def pytest_unconfigure(config):
    source = config.stash.get(_SOURCE, None)
    if source and source.measured:
        source.measured.close()


def pytest_collection_modifyitems(config, items):
    """Checks of several labs and one file: keep those of the lab that the file's folder names."""
    checks = [item for item in items if item.get_closest_marker("check")]
    folders = {item.path.parent.name for item in checks}
    source = config.stash.get(_SOURCE, None)
    if checks and source is None:
        raise pytest.UsageError("checks judge a file: say which with --subject FILE (or solution, or starter)")
    if len(folders) > 1 and source.measured and source.measured.subject not in ("solution", "starter"):
        named = Path(source.measured.subject).resolve().parent.name.partition("_")[0]
        items[:] = [item for item in items if item not in checks or item.path.parent.name.startswith(named + "_")]
        if not items:
            raise pytest.UsageError("checks of several labs, one file: name the lab's folder under tests/labs")


@pytest.fixture(scope="module")
def _given(request) -> Given:
    lab = request.config.stash[_SOURCE]._given
    lab = lab.lab if lab else lab_of(request.path)
    return request.config.stash[_SOURCE].of(lab)


def lab_of(test_file: Path) -> Lab:
    """The lab that ROOT/tests/labs/LAB/test_checks.py belongs to."""
    return read_lab(test_file.parents[3] / "labs" / test_file.parent.name)


@pytest.fixture(scope="module")
def lab(_given) -> Lab:
    """The lab that is being judged; `lab.measurement` is its measure.py."""
    return _given.lab


@pytest.fixture(scope="module")
def evidence(_given) -> Mapping[str, Any]:
    """What measure() produced, read-only."""
    return MappingProxyType(frames.decode(_given.frame))


@pytest.fixture(scope="module")
def inputs(_given) -> Any:
    """What the seed decides: the same that measure() used."""
    return _given.lab.measurement.inputs(_given.seed)


@pytest.fixture(scope="module")
def outside(_given) -> Mapping[str, float]:
    """What was seen of the subject's process from outside."""
    return MappingProxyType(dict(_given.outside))


@pytest.fixture(scope="module")
def seed(_given) -> int:
    """The seed of every secret input."""
    return _given.seed


@pytest.fixture(scope="module")
def device(_given):
    """The torch.device on which the subject ran."""
    import torch

    return torch.device(_given.device)


# -------------------------------------------------------------------------------------------------- asking all checks


class _Results:
    """Collects one CheckResult per check."""

    def __init__(self):
        self.checks: list[CheckResult] = []
        self.faults: list[str] = []

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self, item, call):
        report = (yield).get_result()
        if call.when == "call":
            self.checks.append(self._result(item, call, report))
        elif not report.passed:
            self.faults.append(f"{item.name}, {call.when}: {report.longreprtext}")

    def pytest_collectreport(self, report):
        if report.failed:
            self.faults.append(str(report.longrepr))

    def _result(self, item, call, report) -> CheckResult:
        error = call.excinfo.value if call.excinfo else None
        state = PASSED if report.passed else NOT_MEASURABLE if isinstance(error, NotMeasurable) else FAILED
        if error and not isinstance(error, AssertionError | NotMeasurable):
            self.faults.append(f"{item.name}: {report.longreprtext}")
        marker = item.get_closest_marker("check")
        message = str(error).partition("\nassert ")[0] if error else ""
        says = (item.function.__doc__ or "").strip()
        return CheckResult(item.name, state, marker.kwargs["points"] if marker else 0, says, message, tuple(_looked))


def pytest_runtest_setup(item):
    _looked.clear()


def ask(given: Given) -> tuple[CheckResult, ...]:
    """Run the lab's checks on the evidence given; one result per check, each exactly once. Raises FaultyCheck."""
    results = _Results()
    source = _Hand(given)
    path = given.lab.checks_path
    quiet = [
        "-c",
        str(_EMPTY_INI),
        "--rootdir",
        str(path.parent),
        "--import-mode=importlib",
        "--noconftest",
        "-q",
        "--tb=native",
    ]
    off = [
        f"-pno:{name}" for name in ("cacheprovider", "junitxml", "doctest", "unraisableexception", "threadexception")
    ]
    pytest.main([*quiet, *off, "-p", "breakfix.checks", str(path)], plugins=[source, results])
    wanted = sorted(c.name for c in given.lab.checks)
    if results.faults:
        raise FaultyCheck("\n".join(results.faults))
    if sorted(c.name for c in results.checks) != wanted or not wanted:
        reported = ", ".join(sorted(c.name for c in results.checks)) or "none"
        raise FaultyCheck(
            f"not every check reported once: wanted {', '.join(wanted) or 'at least one'}, got {reported}"
        )
    return tuple(results.checks)


class _Hand:
    """Hands evidence to the fixtures before the plugin looks for an option."""

    def __init__(self, given: Given):
        self.given = given

    @pytest.hookimpl(tryfirst=True)
    def pytest_configure(self, config):
        config.stash[_SOURCE] = _Source(given=self.given)


_EMPTY_INI = Path(__file__).with_name("checks.ini")  # so that no ini file of the learner's folder is read
