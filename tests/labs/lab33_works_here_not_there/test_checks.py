# starter: test_nothing_runs_on_loading test_what_is_no_state_is_refused test_fitting_machines_pass test_faults_in_packages_are_named test_faults_of_the_host_are_named
"""Loading a checkpoint runs nothing of it; preflight names what a machine lacks, and nothing else."""

from breakfix.checks import check, equal


def words(names):
    return ", ".join(names) or "none"


@check(points=2)
def test_nothing_runs_on_loading(evidence):
    """No checkpoint gets anything called that it brings along, however it is wrapped; and it is refused."""
    equal("hostile checkpoints that ran", words(evidence["hostile.ran"]), "none")
    equal("hostile checkpoints that came back as a state", words(evidence["hostile.returned"]), "none")


@check(points=2)
def test_honest_checkpoints_load(evidence, inputs, lab):
    """Every state that was saved comes back, value by value: the old ones, with NumPy's numbers, from a card too."""
    equal("honest checkpoints that were refused", words(evidence["honest.raised"]), "none")
    for name, state in inputs.states.items():
        wanted = lab.measurement.described(state)
        odd = [line for line in evidence["honest.leaves"][name] if line not in wanted]
        equal(f"values that came back otherwise, {name}", words(odd), "none")
        equal(f"values that came back, {name}", len(evidence["honest.leaves"][name]), len(wanted))


@check(points=1)
def test_what_is_no_state_is_refused(evidence):
    """A whole model is code by another name, and half a file is no checkpoint: neither comes back, in whole or part."""
    equal("files that are no state and came back", words(evidence["others.returned"]), "none")


def compare(evidence, machines):
    """What was named of each machine against what is at fault with it."""
    for name, machine in machines.items():
        equal(f"at fault, {name}", words(evidence["named"][name]), words(sorted(machine.faults)))


@check(points=2)
def test_fitting_machines_pass(evidence, inputs):
    """A machine that fits is not held up: not by a number of two digits, an extra package, a newer driver."""
    compare(evidence, inputs.fitting)


@check(points=2)
def test_faults_in_packages_are_named(evidence, inputs):
    """Version, tag, what is missing, what one package asks of another: whatever image the report names."""
    compare(evidence, inputs.packages)


@check(points=1)
def test_faults_of_the_host_are_named(evidence, inputs):
    """Driver and card are no part of any image, and a wheel has kernels for some cards only."""
    compare(evidence, inputs.hosts)
