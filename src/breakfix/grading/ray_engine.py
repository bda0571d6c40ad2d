"""Judging on a Ray cluster: the same `judge_job` as the local engine, each job a task somewhere.

Ray only carries jobs and verdicts; every worker judges with an engine of its own, in the same sandboxes. A worker or a
node that is lost is Ray's to replace, and its job is done again, a few times. What a submission does, a crash or a
timeout, is a verdict like any other: it comes back as data and is never repeated.

Whoever reaches a cluster's ports can run code on it. Submissions have no network; keep the ports from everybody else.
"""

import atexit
import json
import os
from dataclasses import replace
from functools import lru_cache
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # before it is imported: it would report its use

import ray
from ray.exceptions import NodeDiedError, OutOfMemoryError, RayError, RayTaskError, WorkerCrashedError

from breakfix.cache import lab_digest
from breakfix.catalog import Catalog
from breakfix.subject import Job
from breakfix.verdict import Verdict
from breakfix.zygote import Engine, EngineFailed

LOST_WORKERS = 3  # so often a job is done again whose worker was lost


class RayEngine:
    """Judges on the cluster that RAY_ADDRESS names, else on one that it starts here and ends again."""

    def __init__(self, **options: Any):
        self.options = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"} | options

    def __enter__(self) -> "RayEngine":
        if os.environ.get("RAY_ADDRESS"):  # what a running cluster is like was decided when it was started
            ray.init(log_to_driver=False, logging_level="ERROR")
        else:
            ray.init(address="local", **self.options)
        self._judge = ray.remote(num_cpus=1, max_retries=LOST_WORKERS, retry_exceptions=False)(judge)
        return self

    def __exit__(self, *_) -> None:
        ray.shutdown()

    @property
    def workers(self) -> int:
        """How many jobs the cluster takes at a time."""
        return max(1, int(ray.cluster_resources().get("CPU", 1)))

    def judge_job(self, job: Job) -> Verdict:
        """The verdict on a job, from any thread. Raises EngineFailed."""
        task = self._judge.remote(job.to_bytes(), job.lab.id, lab_digest(job.lab))
        try:
            told, frame = ray.get(task)
        except RayTaskError as error:
            raise EngineFailed(f"a worker of the cluster could not judge: {error.cause}") from None
        except (WorkerCrashedError, NodeDiedError, OutOfMemoryError):
            raise EngineFailed(f"{LOST_WORKERS + 1} workers were lost on this job") from None
        except RayError as error:
            raise EngineFailed(f"the cluster failed: {error}") from None
        return Verdict.from_json(json.loads(told), frame)


def judge(data: bytes, lab_id: str, wanted: str) -> tuple[str, bytes]:
    """On a worker: the JSON of a verdict, and its frame. Raises where the worker's lab is another than the driver's."""
    lab = Catalog.read()[lab_id]
    if lab_digest(lab) != wanted:
        raise RuntimeError(
            f"{lab_id}, breakfix or a library differs here from where grade was started; install the same"
        )
    verdict = _engine().judge_job(replace(Job.from_bytes(data), lab_path=lab.path))  # which may lie elsewhere here
    return json.dumps(verdict.to_json()), verdict.frame


@lru_cache
def _engine() -> Engine:
    """One for each worker's process: it stays warm from job to job."""
    engine = Engine()
    atexit.register(engine.close)
    return engine
