"""What the wheel carries: every package of ckptmigrate, and every chain, without a list that could forget one.

Everything else stands in pyproject.toml, which cannot say "find these below another name".
"""

from setuptools import find_packages, setup

CHAINS = "ckptmigrate.migrations"

setup(
    packages=[
        *find_packages(include=["ckptmigrate", "ckptmigrate.*"]),
        CHAINS,
        *(f"{CHAINS}.{chain}" for chain in find_packages("migrations")),
    ]
)
