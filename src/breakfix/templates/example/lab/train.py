# TODO: replace this example by 30 to 120 lines that a real project could have, without a comment on the cause.
