"""``python -m tailrace.cli``."""

from tailrace.cli import main

main()
