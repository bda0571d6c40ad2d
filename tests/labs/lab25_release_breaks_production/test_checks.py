# starter: test_a_good_candidate_may_go test_every_wrong_answer_is_found test_shape_and_dtype_are_compared test_what_raises_or_writes_is_named test_what_stays_alive_is_found test_latency_is_the_typical_call
"""A gate lets every good candidate out and stops every bad one, and says what is wrong with it."""

from breakfix.checks import check, equal


def judged(evidence, lab, group):
    """Each candidate of a group: the gate names what is wrong with it, and nothing else."""
    for name, case in lab.measurement.CASES.items():
        if case.group == group:
            said, escaped = evidence[f"{name}.reasons"], evidence[f"{name}.escaped"]
            named = [reason for reason in said if reason not in case.may]
            got = f"{escaped} came out of the gate" if escaped else ", ".join(named) or "go"
            equal(f"the gate on: {name}", got, case.wanted or "go")


@check(points=2)
def test_a_good_candidate_may_go(evidence, lab):
    """Rounding is no fault in any dtype, nor is nan where the reference has it: who refuses good work gets bypassed."""
    judged(evidence, lab, "good")


@check(points=2)
def test_every_wrong_answer_is_found(evidence, lab):
    """A wrong number is found at whatever request, size, scale and dtype it comes, and so is a nan that comes rarely."""
    judged(evidence, lab, "answers")


@check(points=1)
def test_shape_and_dtype_are_compared(evidence, lab):
    """Outputs are as many, of the same shape and the same dtype: broadcasting would hide what breaks the caller."""
    judged(evidence, lab, "outputs")


@check(points=1)
def test_what_raises_or_writes_is_named(evidence, lab):
    """One error in a thousand calls is one too many, and what writes into its input spoils it for whoever comes next."""
    judged(evidence, lab, "failures")


@check(points=2)
def test_what_stays_alive_is_found(evidence, lab):
    """Whatever keeps tensors of its requests runs out of memory some day; a cache that is full does not."""
    judged(evidence, lab, "memory")


@check(points=2)
def test_latency_is_the_typical_call(evidence, lab):
    """At every size the typical call decides, at 1.2: not the machine's hiccups, nor its mood, nor the first calls."""
    judged(evidence, lab, "latency")
