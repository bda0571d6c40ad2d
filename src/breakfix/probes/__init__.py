"""Instruments for anybody's own training script: they import nothing of the rest of breakfix."""
