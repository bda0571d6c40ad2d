"""`python -m breakfix` is `breakfix`."""

from breakfix.cli import main

main()
