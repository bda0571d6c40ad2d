# TODO: the starter with the fix and nothing else changed.
