"""``python -m ckptmigrate``."""

from .cli import main

main()
