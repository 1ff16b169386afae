"""Read whole modules, as written by `torch.save(module, path)`, without running their code.

Classes and functions in the pickle remain names; only tensors and containers of plain values are built.
"""

import io
import pickle
import pickletools
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor

LIBRARY = "overcomplete."  # libraries whose modules can be read
MODULE = "module"  # entry with the attributes of a module other than its tensors
OPCODES = {"NEWOBJ"}
_MOST = 1000  # maximum number of nested modules
_DTYPES = {
    "Double": torch.float64,
    "Float": torch.float32,
    "Half": torch.float16,
    "BFloat16": torch.bfloat16,
    "Long": torch.int64,
    "Int": torch.int32,
    "Short": torch.int16,
    "Char": torch.int8,
    "Byte": torch.uint8,
    "Bool": torch.bool,
}
_SETS = ("__builtin__ set", "builtins set")


class Inert(dict):
    """The state of an object whose class is known only by its name, `kind`."""

    kind = ""

    def __setstate__(self, state: Any) -> None:
        self.update(state if isinstance(state, dict) else {})


def is_module(data: bytes) -> bool:
    """Return whether a pickle begins with a class of the library."""
    for opcode, argument, _ in pickletools.genops(data):
        if opcode.name == "GLOBAL":
            return str(argument).startswith(LIBRARY)
    return False


def stays_name(name: str) -> bool:
    """Return whether a global in the pickle of a module may remain a name."""
    return name.startswith((LIBRARY, "torch.nn.modules.")) or name in _SETS


class _Unpickler(pickle._Unpickler):  # pyright: ignore[reportAttributeAccessIssue]
    """Builds only tensors and plain containers; in Python, where this can be controlled."""

    dispatch: ClassVar[dict[int, Any]] = dict(pickle._Unpickler.dispatch)  # pyright: ignore

    def __init__(self, data: bytes, names: set[str], read: Callable[[str], bytes]):
        super().__init__(io.BytesIO(data), encoding="utf-8")
        self.real, self.read_storage, self.storages = names, read, {}

    def find_class(self, module: str, name: str) -> Any:
        full = f"{module} {name}"
        if module == "torch" and name.endswith("Storage") and full in self.real:
            return _DTYPES[name.removesuffix("Storage")]
        if full in self.real:
            return super().find_class(module, name)
        if not stays_name(full):
            raise ValueError(f"its pickle needs {module}.{name}, but code in files is never run.")
        return set if full in _SETS else type(name, (Inert,), {"kind": name})

    def persistent_load(self, pid: Any) -> torch.TypedStorage:
        _, dtype, key, _, count = pid
        if key not in self.storages:
            held = self.read_storage(str(key))
            if len(held) != count * dtype.itemsize or not held:
                raise ValueError(
                    f"it declares {count} numbers but contains {len(held)} bytes: it is damaged."
                )
            storage = torch.frombuffer(bytearray(held), dtype=torch.uint8).untyped_storage()
            self.storages[key] = torch.TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)
        return self.storages[key]

    def load_build(self) -> None:
        instance = self.stack[-2]  # pyright: ignore[reportAttributeAccessIssue]
        if not isinstance(instance, Inert | OrderedDict):
            raise ValueError(f"its pickle sets the state of a {type(instance).__name__}.")
        super().load_build()  # pyright: ignore[reportAttributeAccessIssue]

    dispatch[pickle.BUILD[0]] = load_build


def load_module(data: bytes, names: set[str], read: Callable[[str], bytes]) -> Any:
    """Return the object in a pickle; only classes and functions with the given names are resolved.

    `read` returns the bytes of a storage by its key. torch.load is not used, since without the restriction to
    weights it could be made to run TorchScript.
    """
    return _Unpickler(data, names, read).load()


def flatten(module: Inert) -> dict[str, Any]:
    """Return the tensors of a module by their names in its state_dict, and its other attributes."""
    dictionary = _child(module, "dictionary")
    encoder = _child(module, "encoder")
    about = {
        "class": module.kind,
        "top_k": module.get("top_k"),
        "running_threshold": module.get("running_threshold"),
        "delta": dictionary.get("delta"),
        "normalization": getattr(dictionary.get("normalization"), "kind", None),
        "activation": _child(encoder, "final_activation").kind or None,
        "epsilon": _child(_child(encoder, "final_block"), "1").get("eps"),
    }
    return dict(_named_tensors(module)) | {MODULE: about}


def _child(module: Inert, name: str) -> Inert:
    children = module.get("_modules")
    child = children.get(name) if isinstance(children, dict) else None
    return child if isinstance(child, Inert) else Inert()


def _named_tensors(module: Inert) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors by name, up to a limit, since a hostile file may nest modules in themselves."""
    waiting = [("", module)]
    for _ in range(_MOST):
        if not waiting:
            return
        prefix, part = waiting.pop()
        for name, item in _items(part, "_parameters") + _items(part, "_buffers"):
            if isinstance(item, Tensor):
                yield f"{prefix}{name}", item.detach()
        waiting += [
            (f"{prefix}{name}.", child)
            for name, child in _items(part, "_modules")
            if isinstance(child, Inert)
        ]
    raise ValueError(f"it contains more than {_MOST} modules: it is damaged.")


def _items(module: Inert, part: str) -> list[tuple[Any, Any]]:
    held = module.get(part)
    return list(held.items()) if isinstance(held, dict) else []
