"""Assign labs, collect what strangers hand in, grade it, and keep every grade."""
