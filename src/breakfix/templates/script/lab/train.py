# TODO: cut it down to 30 to 120 lines that show the symptom, without a comment on the cause.
