"""How evidence and verdicts are shown to people. Importing this package imports nothing else: each form has a module."""
