"""How evidence and verdicts are shown to people: in the terminal, as tables, as figures. Each form is a module."""
