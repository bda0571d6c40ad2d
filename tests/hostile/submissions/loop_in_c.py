# attack: loops for ever where no Python is run: a regular expression
# state: timeout
import re


def totals(batches):
    re.match(r"(a+)+$", "a" * 64 + "b")
