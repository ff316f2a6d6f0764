"""Call the classifier a head. Since 2.0; its mark is there only after 1.0."""

from __future__ import annotations

from ckptmigrate import Migrator, Present, Rename

from ._names import HEAD

MIGRATOR = Migrator(
    chain="acme.right",
    version="2.0",
    marks=[Present(r"(body|trunk)\.fc"), Present(r".*\.fc")],
    operations=[Rename(r"body\.fc", HEAD, back=(HEAD, "body.fc"))],
)
