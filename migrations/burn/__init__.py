"""What today's Burn requires of a checkpoint of an earlier release, and the file itself proves."""

from ckptmigrate import Chain

CHAIN = Chain("burn", family="burn", automatic=True, about="what today's Burn requires and the file proves")
