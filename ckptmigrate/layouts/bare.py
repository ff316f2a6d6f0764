"""A state dict and nothing around it: `torch.save(model.state_dict(), path)`, a safetensors file, a tensor alone."""

from __future__ import annotations

from ckptmigrate.format import Layout

LAYOUT = Layout("bare", keys={"model": ((),)}, about="a state dict and nothing around it")
