"""A migrator's file, written from what two checkpoints prove of each other.

evidence      what elements leave behind: digests, bags, lines
matching      what equal elements prove; lines, nesting: of rows and of pieces; ties: names of one tensor
pairing       what names suggest of the rest; siblings: what holds for one layer holds for the next
remains       what is dropped, added, or asked; guesses: what shapes would allow
derivation    how one name is made of others; generalise, spelling: many names as patterns that match just them
renumber      lists that were numbered anew
composing     operations in an order that works; marking: what tells the old one from the new one
proving       all of it, applied to the old checkpoint and compared with the new one
proposal      these, one after the other
source        the file's text; writing: the file in its folder
"""

from __future__ import annotations

from .proposal import Proposal, propose
from .proving import Proof
from .writing import Written, new

__all__ = ["Proof", "Proposal", "Written", "new", "propose"]
