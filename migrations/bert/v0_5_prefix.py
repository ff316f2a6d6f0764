"""Take the prefix of the pretraining model out, so that the names are those of the bare encoder.

What was trained with a head has the encoder under `bert.`; since 0.5.0 `from_pretrained` of a bare BertModel takes that off. Heads
(`cls.`, `classifier.`) keep their names. Source: pytorch_pretrained_bert/modeling.py of 0.4.0 and 0.5.0.
"""

from ckptmigrate import Migrator, Present, Rename

MIGRATOR = Migrator(
    chain="bert",
    version="0.5",
    marks=[Present(r"bert\.encoder\..*")],
    operations=[
        Rename(
            r"bert\.((?:embeddings|encoder|pooler)\..*)",
            r"\1",
            back=(r"((?:embeddings|encoder|pooler)\..*)", r"bert.\1"),
        ),
    ],
)
