"""The referee is torch: what is packed must load and take one more step, bit for bit."""

from __future__ import annotations

import copy
import pickle
from collections import defaultdict
from types import BuiltinFunctionType, FunctionType, SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pytest
import torch

import ckptmigrate
from ckptmigrate import registry, store
from ckptmigrate.checkpoint import Checkpoint, Optimizer, Origin, Place
from ckptmigrate.errors import OptimizerError
from ckptmigrate.format import GatherOptions, Parts, WriteOptions
from ckptmigrate.tensor import Tensor, array
from ckptmigrate.values import Inert, Known, Ordered

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FAMILY = registry.family("torch")
OPTIONS = GatherOptions()


def ours(value: Any) -> Any:
    """Give torch's tree in our nodes; tensors keep their bytes."""
    if isinstance(value, torch.Tensor):
        return Tensor(array(value.detach().cpu().numpy()))
    if isinstance(value, dict):
        return {key: ours(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(ours(item) for item in value)
    return value


def theirs(value: Any) -> Any:
    """Give our tree back in torch's values."""
    if isinstance(value, Tensor):
        return torch.from_numpy(value.numpy().copy()).reshape(tuple(value.promise.shape))
    if isinstance(value, dict):
        return {key: theirs(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(theirs(item) for item in value)
    return value


def unpack(tree: Any) -> Optimizer:
    found = FAMILY.unpack("optimizers", Parts(tree=tree), OPTIONS)
    assert isinstance(found, Optimizer)
    return found


def pack(optimizer: Optimizer, *, keep: bool = False) -> Any:
    origin = Origin(places={"optimizers.0": Place("", ("optimizer",))}) if keep else Origin()
    return FAMILY.pack("optimizers", optimizer, Checkpoint("torch", optimizers=[optimizer], origin=origin)).tree


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))


def step(net: torch.nn.Module, opt: torch.optim.Optimizer) -> None:
    torch.manual_seed(1)
    x = torch.randn(5, 3)

    def closure() -> torch.Tensor:
        opt.zero_grad()
        loss = net(x).pow(2).sum()
        loss.backward()
        return loss

    opt.step(closure)  # type: ignore[arg-type, unused-ignore] # torch annotates a float, gives a tensor


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "sgd-momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "adam": torch.optim.Adam,
    "amsgrad": lambda p: torch.optim.Adam(p, amsgrad=True),
    "adamw": torch.optim.AdamW,
    "rmsprop": lambda p: torch.optim.RMSprop(p, momentum=0.5, centered=True),
    "adagrad": torch.optim.Adagrad,
    "adadelta": torch.optim.Adadelta,
    "adamax": torch.optim.Adamax,
    "nadam": torch.optim.NAdam,
    "radam": torch.optim.RAdam,
    "asgd": torch.optim.ASGD,
    "rprop": torch.optim.Rprop,
    "lbfgs": lambda p: torch.optim.LBFGS(p, max_iter=4),
    "adafactor": torch.optim.Adafactor,
}


@pytest.mark.parametrize("steps", [0, 1, 3])
@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_what_is_packed_loads_and_takes_one_more_step_bit_for_bit(name: str, steps: int) -> None:
    net = model()
    opt = OPTIMIZERS[name](net.parameters())
    for _ in range(steps):
        step(net, opt)
    other = copy.deepcopy(net)
    resumed = OPTIMIZERS[name](other.parameters())
    resumed.load_state_dict(theirs(pack(unpack(ours(opt.state_dict())))))
    step(net, opt)
    step(other, resumed)
    for mine, expected in zip(other.parameters(), net.parameters(), strict=True):
        assert torch.equal(mine, expected)


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_packing_what_was_unpacked_gives_the_same_state_dict(name: str) -> None:
    net = model()
    opt = OPTIMIZERS[name](net.parameters())
    step(net, opt)
    before = ours(opt.state_dict())
    after = pack(unpack(before))

    assert after == before


def test_every_slot_of_torch_s_optimizers_stands_in_the_table() -> None:
    slots = set()
    for make in OPTIMIZERS.values():
        net = model()
        opt = make(net.parameters())
        step(net, opt)
        slots |= {slot for state in opt.state_dict()["state"].values() for slot in state}

    assert slots <= set(FAMILY.slots)


def adam(**more: Any) -> dict[str, Any]:
    state = {"step": 5, "exp_avg": 1, "exp_avg_sq": 2}
    return {"state": {0: state}, "param_groups": [{"lr": 0.1, "params": [0, 1]}], **more}


def test_addresses_are_matched_by_position_and_become_indices() -> None:
    first, second = 140_000_000_000_008, 140_000_000_000_000
    tree = {"state": {second: {"momentum_buffer": 7}}, "param_groups": [{"lr": 1, "params": [first, second]}]}
    packed = pack(unpack(tree))

    assert packed == {"state": {1: {"momentum_buffer": 7}}, "param_groups": [{"lr": 1, "params": [0, 1]}]}


def test_parameter_names_come_back_before_the_other_fields() -> None:
    tree = {"state": {}, "param_groups": [{"param_names": ["w", "b"], "lr": 1, "params": [0, 1]}]}
    optimizer = unpack(tree)

    assert [(p.name, p.by) for p in optimizer.params] == [("w", "file"), ("b", "file")]
    assert pack(optimizer) == tree
    assert next(iter(pack(optimizer)["param_groups"][0])) == "param_names"


def test_keys_that_are_names_name_the_parameters() -> None:
    tree = {"state": {"a.weight": {"x": 1}}, "param_groups": [{"params": ["a.weight", "a.bias"]}]}
    optimizer = unpack(tree)

    assert [(p.name, p.by) for p in optimizer.params] == [("a.weight", "file"), ("a.bias", "file")]
    assert pack(optimizer, keep=True) == tree
    assert pack(optimizer) == {
        "state": {0: {"x": 1}},
        "param_groups": [{"param_names": ["a.weight", "a.bias"], "params": [0, 1]}],
    }


def test_kept_keys_that_are_names_are_the_names_of_now() -> None:
    optimizer = unpack({"state": {"a": {"x": 1}}, "param_groups": [{"params": ["a"]}]})
    optimizer.params[0].name = "b"

    assert pack(optimizer, keep=True) == {"state": {"b": {"x": 1}}, "param_groups": [{"params": ["b"]}]}


def test_a_field_that_is_none_is_kept() -> None:
    tree = {"state": {0: {"momentum_buffer": None}}, "param_groups": [{"params": [0]}]}

    assert pack(unpack(tree)) == tree


def test_adam_state_without_its_step_is_refused_with_parameter_and_field() -> None:
    tree = adam()
    del tree["state"][0]["step"]
    with pytest.raises(OptimizerError, match="of parameter 0 has exp_avg, exp_avg_sq and no step") as caught:
        unpack(tree)
    assert caught.value.data["field"] == "step"


def test_a_step_that_the_group_counts_needs_none_in_the_state() -> None:
    tree = {"state": {0: {"exp_avg": 1, "exp_avg_sq": 2}}, "param_groups": [{"step": 9, "params": [0]}]}

    assert pack(unpack(tree)) == tree


@pytest.mark.parametrize("state", [{}, {0: {"step": 5, "exp_avg": 1, "exp_avg_sq": 2}}])
def test_parameters_without_state_are_legal(state: dict[int, Any]) -> None:
    optimizer = unpack(adam(state=state))

    assert [p.slots is not None for p in optimizer.params] == [bool(state), False]
    assert pack(optimizer) == adam(state=state)


def test_state_of_a_parameter_that_no_group_has_is_carried() -> None:
    tree = {"state": {7: {"x": 1}}, "param_groups": [{"params": [0]}]}

    assert pack(unpack(tree)) == tree


def test_what_else_stands_at_the_top_is_carried() -> None:
    tree = adam(loss_scale=128.0)

    assert pack(unpack(tree)) == tree


def test_the_state_may_be_a_defaultdict() -> None:
    inner = {0: {"step": 1}}
    tree = adam(state=Known("collections.defaultdict", (inner,)))

    assert pack(unpack(tree))["state"] == inner


@pytest.mark.parametrize(
    "tree",
    [None, 3, [], {}, {"state": {}}, {"state": {}, "param_groups": {}}, {"state": {0: 1}, "param_groups": [{"params": [0]}]},
     {"state": {}, "param_groups": [{"lr": 1}]}, {"state": {}, "param_groups": [{"params": [None]}]}, Inert("object", "x.Y")],
)  # fmt: skip
def test_what_is_no_optimizer_is_none(tree: Any) -> None:
    assert FAMILY.unpack("optimizers", Parts(tree=tree), OPTIONS) is None


SCHEDULERS: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "step": lambda o: torch.optim.lr_scheduler.StepLR(o, 2),
    "multistep": lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [1, 3]),
    "cosine": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 5),
    "onecycle": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, 10),
    "plateau": torch.optim.lr_scheduler.ReduceLROnPlateau,
    "lambda": lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda _: 1.0),
    "sequential": lambda o: torch.optim.lr_scheduler.SequentialLR(
        o, [torch.optim.lr_scheduler.ConstantLR(o), torch.optim.lr_scheduler.ExponentialLR(o, 0.9)], [2]
    ),
}


@pytest.mark.parametrize("name", list(SCHEDULERS))
def test_every_scheduler_s_state_is_one_and_comes_back_as_it_was(name: str) -> None:
    opt = torch.optim.SGD(model().parameters(), lr=0.1, momentum=0.9)
    state = SCHEDULERS[name](opt).state_dict()
    found = FAMILY.unpack("schedulers", Parts(tree=state), OPTIONS)

    assert found == state
    assert FAMILY.pack("schedulers", found, Checkpoint("torch")).tree == state


def test_a_scheduler_of_1_10_leaves_its_method_reference_out_and_keeps_the_rest() -> None:
    method = Inert(
        "object", "builtins.getattr", (Inert("object", "torch.optim.lr_scheduler.OneCycleLR"), "_annealing_cos")
    )
    state = {"last_epoch": 3, "base_lrs": [0.1], "anneal_func": method}
    weights = Ordered({"w": Tensor(array(np.zeros(4, "u1")))})
    checkpoint = store.gather(
        {"": Parts("torch", {"model": weights, "scheduler": state})}, OPTIONS, container="torch_zip"
    )
    scattered = store.scatter(
        checkpoint, registry.format("torch_zip"), registry.layout("plain"), WriteOptions(), "x.pt"
    )
    tree = scattered["x.pt"][1].tree

    assert tree["scheduler_state_dict"] == {"last_epoch": 3, "base_lrs": [0.1]}
    assert any(row.source == "scheduler/anneal_func" and row.what == "left out" for row in checkpoint.ledger.rows())


def by_name() -> Any:
    """Give a pickler that writes stand-ins under the names of the classes that they stand for, whether these exist or not."""
    base: Any = vars(pickle)["_Pickler"]  # the one in Python, whose methods can be replaced

    class ByName(base):  # type: ignore[misc] # of a base that is not public
        def save_global(self, obj: Any, name: str | None = None) -> None:
            module, wanted = NAMES.get(obj, (obj.__module__, name or obj.__qualname__))
            self.write(pickle.GLOBAL + f"{'__builtin__' if module == 'builtins' else module}\n{wanted}\n".encode())
            self.memoize(obj)

        dispatch: ClassVar[Any] = dict(base.dispatch)
        dispatch |= dict.fromkeys((type, FunctionType, BuiltinFunctionType), save_global)

    return SimpleNamespace(Pickler=ByName, dumps=pickle.dumps, __name__="pickle")


class OneCycle:
    def _annealing_cos(self) -> None: ...


class Sgd: ...


NAMES: dict[Any, tuple[str, str]] = {
    OneCycle: ("torch.optim.lr_scheduler", "OneCycleLR"),
    Sgd: ("torch.optim.sgd", "SGD"),
}


def one_cycle_of_1_10(params: list[torch.Tensor]) -> dict[str, Any]:
    """Give OneCycleLR's state as 1.10 has it: its method is bound, and drags scheduler, optimizer and parameters along."""
    sgd, scheduler = Sgd(), OneCycle()
    state = defaultdict(dict, {p: {"momentum_buffer": torch.ones_like(p)} for p in params})
    sgd.__dict__ |= {
        "defaults": {"lr": 0.1},
        "state": state,
        "param_groups": [{"params": params, "lr": 0.1, "max_lr": 0.1}],
    }
    own = {
        "total_steps": 10, "step_size_up": 2.0, "step_size_down": 6.0, "cycle_momentum": False, "base_lrs": [0.004],
        "last_epoch": 3, "_step_count": 4, "verbose": False, "_get_lr_called_within_step": False, "_last_lr": [0.09],
    }  # fmt: skip
    scheduler.__dict__ |= {"optimizer": sgd, **own}
    scheduler.__dict__["anneal_func"] = scheduler._annealing_cos
    return {"anneal_func": scheduler._annealing_cos, **own}


def test_a_real_one_cycle_state_of_1_10_is_innocent_and_resumes_under_today_s_torch(tmp_path: Path) -> None:
    net = model()
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    weights = [p.detach() for p in net.parameters()]
    tree = {"model": net.state_dict(), "optimizer": opt.state_dict(), "scheduler": one_cycle_of_1_10(weights)}
    torch.save(tree, tmp_path / "in.pt", pickle_module=by_name())
    checkpoint = store.open_checkpoint(tmp_path / "in.pt")
    left = {row.source: row.reason for row in checkpoint.ledger.rows() if row.what == "left out"}

    assert left["scheduler/anneal_func"] == "method reference; torch >= 2.4 stores a name instead"
    assert any("momentum_buffer" in path or "params" in path for path in left)
    assert all(path.startswith("scheduler/anneal_func") for path in left)
    assert not any(" at 0x" in path or "promise" in path for path in left)  # the same words in every run
    for target in (tmp_path / "out.pt", tmp_path / "out"):
        ckptmigrate.migrate(tmp_path / "in.pt", target)
    state = torch.load(tmp_path / "out.pt", weights_only=True)["scheduler"]
    assert "anneal_func" not in state
    assert state["last_epoch"] == 3
    scheduler = torch.optim.lr_scheduler.OneCycleLR(opt, 0.1, 10, cycle_momentum=False)
    scheduler.load_state_dict(state)
    scheduler.step()
    assert scheduler.last_epoch == 4


@pytest.mark.parametrize(
    ("name", "dtype", "role", "buffer"),
    [
        ("bn.running_mean", "f4", None, True),
        ("bn.num_batches_tracked", "i8", None, True),
        ("position_ids", "i8", None, True),
        ("mask", "?", None, True),
        ("fc.weight", "f4", None, False),
        ("fc.weight", "f4", "buffer", True),
        ("table", "i8", "parameter", False),
    ],
)
def test_buffers_are_told_by_role_name_and_dtype(name: str, dtype: str, role: Any, buffer: bool) -> None:
    assert FAMILY.is_buffer(name, Tensor(array(np.zeros(2, dtype)), role)) is buffer


def test_a_file_alone_says_which_section_it_is() -> None:
    opt = torch.optim.Adam(model().parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(opt, 2).state_dict()

    assert FAMILY.section(Parts(tree=ours(opt.state_dict()))) == "optimizers"
    assert FAMILY.section(Parts(tree=scheduler)) == "schedulers"
    assert FAMILY.section(Parts(tree=ours(model().state_dict()))) is None
    assert FAMILY.section(Parts(tensors=ours(model().state_dict()))) == "model"
