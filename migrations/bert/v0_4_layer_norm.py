"""Call a layer norm's scale and shift weight and bias.

pytorch-pretrained-bert up to 0.3 had a layer norm of its own with TensorFlow's names, `gamma` and `beta`; since 0.4.0 it is `weight`
and `bias`, as in torch. Only inside a module called `LayerNorm`: other models have a `gamma` that is none of it.
Source: pytorch_pretrained_bert/modeling.py of 0.3.0 and 0.4.0.
"""

from ckptmigrate import Migrator, Present, Rename

NORM = r"((?:.*\.)?LayerNorm)"

MIGRATOR = Migrator(
    chain="bert",
    version="0.4",
    marks=[Present(rf"{NORM}\.(gamma|beta)")],
    operations=[
        Rename(
            {rf"{NORM}\.gamma": r"\1.weight", rf"{NORM}\.beta": r"\1.bias"},
            back={rf"{NORM}\.weight": r"\1.gamma", rf"{NORM}\.bias": r"\1.beta"},
        ),
    ],
)
