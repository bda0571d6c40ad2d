# attack: patches pytest's reports, the checks' own functions and the verdict
import _pytest.reports
import _pytest.runner

import breakfix.checks
import breakfix.judge
import breakfix.verdict

_pytest.reports.TestReport.passed = property(lambda self: True)
_pytest.runner.CallInfo.excinfo = property(lambda self: None)
for name in ("at_most", "at_least", "equal", "not_measurable"):
    setattr(breakfix.checks, name, lambda *_, **__: None)
breakfix.checks.ask = lambda given: ()
breakfix.judge._state = lambda states: "passed"
breakfix.verdict.CheckResult.passed = property(lambda self: True)
breakfix.verdict.Verdict.passed = property(lambda self: True)


def totals(batches):
    return -sum(batch.double().sum(0) for batch in batches)
