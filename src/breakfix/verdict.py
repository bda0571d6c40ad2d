"""A verdict: what the checks said about one subject, with every figure that they looked at."""

import math
from dataclasses import asdict, dataclass, field
from typing import Any

PASSED, FAILED, ERROR, TIMEOUT = "passed", "failed", "error", "timeout"
OUT_OF_MEMORY, TOO_MUCH_DATA = "out of memory", "too much data"
NOT_MEASURABLE, NEEDS_CUDA, NEEDS_RANKS, NEEDS_PACKAGE = "not measurable", "needs cuda", "needs ranks", "needs package"
STATES = (
    PASSED, FAILED, ERROR, TIMEOUT, OUT_OF_MEMORY, TOO_MUCH_DATA, NOT_MEASURABLE, NEEDS_CUDA, NEEDS_RANKS, NEEDS_PACKAGE
)  # fmt: skip

EXIT_CODES = {PASSED: 0, FAILED: 1, ERROR: 1, TIMEOUT: 4, OUT_OF_MEMORY: 4, TOO_MUCH_DATA: 4, NOT_MEASURABLE: 5}
USAGE, ENVIRONMENT = 2, 3


@dataclass(frozen=True)
class Figure:
    """One figure beside its bound, as in `loss error 3e-06 <= 1e-05`."""

    what: str
    value: Any
    relation: str  # "<=", ">=" or "=="
    bound: Any
    unit: str = ""
    holds: bool = False


@dataclass(frozen=True)
class CheckResult:
    """What one check said; `says` is its docstring, `message` why it did not pass."""

    name: str
    state: str  # PASSED, FAILED or NOT_MEASURABLE
    points: int
    says: str = ""
    message: str = ""
    figures: tuple[Figure, ...] = ()

    @property
    def passed(self) -> bool:
        return self.state == PASSED


@dataclass(frozen=True)
class Verdict:
    """The outcome for one subject of one lab at one seed on one device."""

    lab: str
    state: str
    seed: int
    device: str = "cpu"
    checks: tuple[CheckResult, ...] = ()
    detail: str = ""  # the learner's own traceback, where it stood, what is needed
    log: str = ""  # the end of what the subject printed
    outside: dict[str, float] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    frame: bytes = field(default=b"", compare=False, repr=False)  # the evidence; see breakfix.evidence.decode

    @property
    def passed(self) -> bool:
        return self.state == PASSED

    @property
    def failed_checks(self) -> frozenset[str]:
        """Names of the checks that did not pass."""
        return frozenset(c.name for c in self.checks if not c.passed)

    @property
    def points(self) -> tuple[int, int]:
        """(points earned, points there are); nothing is earned without a judged state."""
        counted = self.state in (PASSED, FAILED)
        return sum(c.points for c in self.checks if c.passed and counted), sum(c.points for c in self.checks)

    @property
    def exit_code(self) -> int:
        return EXIT_CODES.get(self.state, ENVIRONMENT)

    def to_json(self) -> dict[str, Any]:
        """A dict for json.dumps, without the frame; nan and inf become strings, as JSON has neither."""
        data = {k: v for k, v in asdict(self).items() if k != "frame"}
        return _strict(data | {"points": list(self.points)})

    @classmethod
    def from_json(cls, data: dict[str, Any], frame: bytes = b"") -> "Verdict":
        """The verdict that `to_json` wrote."""
        fields = {k: v for k, v in data.items() if k != "points"}
        checks = tuple(
            CheckResult(**(c | {"figures": tuple(Figure(**_numbers(f)) for f in c["figures"])})) for c in data["checks"]
        )
        return cls(**(fields | {"checks": checks, "frame": frame}))


def _strict(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _strict(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(v) for v in value]
    return repr(value) if isinstance(value, float) and not math.isfinite(value) else value


def _numbers(figure: dict[str, Any]) -> dict[str, Any]:
    """Figures whose value or bound was nan or inf hold floats again."""
    back = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
    return {k: back.get(v, v) if k in ("value", "bound") and isinstance(v, str) else v for k, v in figure.items()}
