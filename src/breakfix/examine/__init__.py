"""A person's own training script, unchanged, under probes that cost little; and what they found.

`launch` starts the command with `hook/` on its path. There `attach` installs the probes as soon as torch is imported;
each process leaves a record, and `report` makes one of them.
"""
