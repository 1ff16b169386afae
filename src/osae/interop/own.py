"""Our own folders: `sae.json` with the choices, `sae.safetensors` with the parameters; and runs of them."""

from dataclasses import fields
from pathlib import Path
from typing import get_args

from osae.config import from_json
from osae.interop.found import SHOWN, Found
from osae.interop.parts import assemble
from osae.model import SAE, SCHEMA, SAEConfig
from osae.sparsify import Sparsifier

NAME = "osae"
_KINDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("width", "units"), (int,)),
    **dict.fromkeys(("tied", "encoder_bias", "decoder_bias"), (bool,)),
    "sparsifier": get_args(Sparsifier),
}


def recognises(found: Found) -> bool:
    """Whether the file is one of ours."""
    return found.file.name == "sae.safetensors" and (found.file.parent / "sae.json").is_file()


def read(found: Found) -> SAE:
    """The SAE as it was saved."""
    if (schema := found.config.get("schema")) != SCHEMA:
        raise ValueError(f"sae.json has schema {str(schema)[:60]}: this release reads {SCHEMA}.")
    if found.config.get("sha256") != found.sha256:
        raise ValueError("sae.safetensors is not the file that sae.json was written for: save the SAE again.")
    config = _config(found)
    state = {name: found.matrix(name) for name in ("decoder", "encoder")}
    state |= {name: found.vector(name) for name in ("encoder_bias", "decoder_bias", "threshold")}
    units, width = config.units, config.width
    shapes = {"encoder_bias": (units,), "decoder_bias": (width,), "threshold": (units,)}
    for name, tensor in state.items():
        if tuple(tensor.shape) != (wanted := shapes.get(name, (units, width))):
            raise ValueError(f"{name} is {tuple(tensor.shape)} and sae.json makes it {wanted}.")
    return assemble(config, state)


def _config(found: Found) -> SAEConfig:
    try:
        config = from_json(found.config["config"])
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"the config in sae.json is not an SAE's: {error}") from error
    if not isinstance(config, SAEConfig):
        raise ValueError(f"the config in sae.json is a {type(config).__name__}: an SAEConfig is needed.")
    _check_kinds(config, _KINDS)
    _check_kinds(config.sparsifier, dict.fromkeys((f.name for f in fields(config.sparsifier)), (int, float)))
    if type(getattr(config.sparsifier, "k", 1)) is not int:
        raise ValueError(f"the config in sae.json has {config.sparsifier}: k is a whole number.")
    return config


def _check_kinds(choices: SAEConfig | Sparsifier, kinds: dict[str, tuple[type, ...]]) -> None:
    for name, allowed in kinds.items():
        value = getattr(choices, name)
        if type(value) not in allowed:  # exactly: True is no number
            wanted = " or ".join(kind.__name__ for kind in allowed)
            raise ValueError(f"{name} in sae.json is {repr(value)[:60]}: it must be {wanted}.")


def only_sae_of_run(folder: Path) -> Path:
    """The folder of a run's one finished SAE."""
    names = sorted(child.parent.name for child in folder.glob("*/sae.json"))
    if len(names) == 1:
        return folder / names[0]
    if not names:
        raise ValueError(f"this run has no finished SAE yet: `osae resume {folder}` goes on with it.")
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    raise ValueError(f"this run holds {len(names)} SAEs: name one of {', '.join(names[:SHOWN])}{more}.")
