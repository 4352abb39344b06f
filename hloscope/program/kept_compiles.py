"""Compiles that need not be done again: what the compiler made of a program, kept by the content of the program.

The key is the lowered program with the names of its functions, scopes and arguments but without its source places, the
compiler's options with the devices, the slice and the versions. What is kept takes its places from the program as it is
written now.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import jax

from hloscope.hardware.slices import Slice
from hloscope.program import jax_internals
from hloscope.program.dumps import Dumps
from hloscope.program.relocating import (
    Locations,
    Places,
    as_lists,
    from_lists,
    locations_of,
    moves_between,
    relocated_hlo,
    relocated_mlir,
)
from hloscope.store import Store
from hloscope.version import __version__

_KIND = "compile"
_COMPILER_SETTINGS = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")
"""Environment variables that XLA and libtpu take options from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """What the compiler made of one program.

    Attributes:
        text: The final scheduled module.
        dumps: What the compiler wrote down on its way.
        memory_bytes: Its figures per device.
        parameter_shardings: An `OpSharding` for each parameter; None where there are none.
        output_shardings: The same for outputs.
        diagnostics: What it said that is about the user's program.
        too_large: Its words for why the program does not fit in HBM; None when it fits.
    """

    text: str
    dumps: Dumps
    memory_bytes: Mapping[str, int]
    parameter_shardings: Sequence[Any] | None
    output_shardings: Sequence[Any] | None
    diagnostics: tuple[str, ...]
    too_large: str | None = None

    def get_parameter_shardings(self) -> Sequence[Any] | None:
        """The shardings of parameters, under the name that XLA's executables have for them."""
        return self.parameter_shardings

    def get_output_shardings(self) -> Sequence[Any] | None:
        """The shardings of outputs, likewise."""
        return self.output_shardings


def compiled_once(
    store: Store | None,
    lowered: jax.stages.Lowered,
    devices: Sequence[Any],
    chosen: Slice,
    options: Mapping[str, str],
    versions: Mapping[str, str],
    compile_now: Callable[[], Compiled],
) -> Compiled:
    """What the compiler makes of a program, from an earlier compile where there was one.

    Args:
        store: Where compiles are kept; None keeps none.
        lowered: The program.
        devices: The compile-only device of each partition; empty for devices at hand, whose compiles are not kept.
        chosen: The slice.
        options: XLA compiler options.
        versions: Of all that takes part.
        compile_now: Compiles.
    """
    if store is None or not devices or "xla_dump_to" in options:
        return compile_now()
    locations = locations_of(lowered.as_text(debug_info=True))
    key = _key(lowered, locations, devices, chosen, options, versions)
    body = store.get(_KIND, key)
    kept = None if body is None else _restored(body, locations.places)
    if kept is None:
        kept = compile_now()
        store.put(_KIND, key, _packed(kept, locations.places))
    return kept


def _key(
    lowered: jax.stages.Lowered,
    locations: Locations,
    devices: Sequence[Any],
    chosen: Slice,
    options: Mapping[str, str],
    versions: Mapping[str, str],
) -> str:
    placed = [(device.id, getattr(device, "coords", None)) for device in devices]
    settings = jax_internals.compile_options(lowered, devices, options).SerializeAsString()
    parts = (
        lowered.as_text(),
        repr(locations.names),
        hashlib.sha256(settings).hexdigest(),
        repr((chosen.name, placed, sorted(options.items()), sorted(versions.items()), __version__)),
        repr(_compiler_build(devices)),
        repr([os.environ.get(name) for name in _COMPILER_SETTINGS]),
    )
    return "\0".join(hashlib.sha256(part.encode()).hexdigest() for part in parts)


def _compiler_build(devices: Sequence[Any]) -> str | None:
    """What the compiler says of itself: `TPU_LIBRARY_PATH` names another libtpu than the one that is installed."""
    return getattr(getattr(devices[0], "client", None), "platform_version", None)


def _packed(compiled: Compiled, places: Places) -> bytes:
    document = {
        "text": compiled.text,
        "dumps": asdict(compiled.dumps),
        "memory_bytes": dict(compiled.memory_bytes),
        "parameter_shardings": _as_text(compiled.parameter_shardings),
        "output_shardings": _as_text(compiled.output_shardings),
        "diagnostics": list(compiled.diagnostics),
        "too_large": compiled.too_large,
        "places": as_lists(places),
    }
    return zlib.compress(json.dumps(document).encode(), level=1)


def _restored(body: bytes, places: Places) -> Compiled | None:
    """What was kept, its places as they are now; None where these cannot be told, or the entry cannot be read."""
    try:
        document = json.loads(zlib.decompress(body))
        moves = moves_between(from_lists(**document["places"]), places)
        compiled = Compiled(
            text=document["text"],
            dumps=Dumps(**document["dumps"]),
            memory_bytes=document["memory_bytes"],
            parameter_shardings=_from_text(document["parameter_shardings"]),
            output_shardings=_from_text(document["output_shardings"]),
            diagnostics=tuple(document["diagnostics"]),
            too_large=document["too_large"],
        )
    except (zlib.error, ValueError, KeyError, TypeError):
        return None
    if moves is None or all(old == new for old, new in moves.items()):
        return compiled if moves is not None else None
    text = relocated_hlo(compiled.text, moves)
    dumps = compiled.dumps
    partitioned = None if dumps.partitioned is None else relocated_hlo(dumps.partitioned, moves)
    if text is None or (partitioned is None) != (dumps.partitioned is None):
        return None
    before = None if dumps.before_propagation is None else relocated_mlir(dumps.before_propagation, moves)
    return replace(compiled, text=text, dumps=Dumps(before_propagation=before, partitioned=partitioned))


def _as_text(shardings: Sequence[Any] | None) -> list[str] | None:
    if shardings is None:
        return None
    return [base64.b64encode(one.SerializeToString()).decode() for one in shardings]


def _from_text(texts: Sequence[str] | None) -> list[Any] | None:
    return None if texts is None else [jax_internals.op_sharding(base64.b64decode(one)) for one in texts]
