"""Where CI is set nothing is skipped in silence: a missing package is a failure there, a missing GPU is not."""

import os

import pytest


def pytest_collection_modifyitems(items):
    """Ranks are forked from this process: before any test has had autograd start a thread, which a fork would lose."""
    items.sort(key=lambda item: not hasattr(getattr(item, "module", None), "run_ranks"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.skipped and os.environ.get("CI") and _lacks_more_than_a_gpu(report):
        report.outcome, report.longrepr = "failed", f"skipped, which fails where CI is set: {report.longrepr[2]}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    report = yield
    if report.skipped and os.environ.get("CI"):
        report.outcome, report.longrepr = "failed", f"skipped, which fails where CI is set: {report.longrepr[2]}"
    return report


def _lacks_more_than_a_gpu(report) -> bool:
    return not hasattr(report, "wasxfail") and not any(word in str(report.longrepr[2]) for word in ("CUDA", "GPU"))
