# wrong: test_the_symptom_is_gone test_the_cause_is_gone test_nothing_else_broke
# TODO: why a person would try it, and what it breaks; name above the checks that reject it.
