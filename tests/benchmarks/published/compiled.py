"""Compiled texts of the rows, kept by what they were compiled from."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from published.rows import ROWS, Row

from hloscope.base.store import Store, open_default_store


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """One row's program as it was compiled.

    Attributes:
        text: The scheduled module.
        device_ids: The device of each partition.
        mesh: Axis sizes by name; None for a program without a mesh.
        partition_ids: The partition at each mesh position; None when they agree.
    """

    text: str
    device_ids: tuple[int, ...] | None
    mesh: dict[str, int] | None
    partition_ids: tuple[int, ...] | None


def compiled(row: Row, store: Store | None = None) -> Compiled:
    """The row's compiled program, from the cache when nothing that it depends on has changed."""
    store = store if store is not None else open_default_store()
    key = _key(row)
    kept = store.get("published", key) if store is not None else None
    found = json.loads(kept) if kept is not None else _compile(row)
    if kept is None and store is not None:
        store.put("published", key, json.dumps(found).encode())
    ids, partitions = found["device_ids"], found["partition_ids"]
    return Compiled(
        text=found["text"],
        device_ids=None if ids is None else tuple(ids),
        mesh=found["mesh"],
        partition_ids=None if partitions is None else tuple(partitions),
    )


def _key(row: Row) -> str:
    from importlib.metadata import version

    source = (Path(__file__).parent / "programs.py").read_text(encoding="utf-8")
    facts = [getattr(row.program, "__name__", ""), row.slice, row.args, row.mesh, row.out, sorted(row.options.items())]
    return json.dumps([facts, source, version("jax"), version("libtpu")])


def _compile(row: Row) -> dict[str, object]:
    from hloscope.compile.compiling import start_compile
    from hloscope.compile.lowering import lower
    from hloscope.compile.target import make_facts

    print(f"compiling {row.name} for {row.slice}", file=sys.stderr, flush=True)
    facts = make_facts(
        mesh=row.mesh, slice=row.slice, args=row.args, out=row.out, compiler_options=dict(row.options) or None
    )
    found = start_compile(lower(row.program, facts, name=row.name)).capture()
    mesh = found.mesh
    return {
        "text": found.compiled.text,
        "device_ids": found.compiled.device_ids or None,
        "mesh": None if mesh is None else dict(zip(mesh.axis_names, mesh.axis_sizes, strict=True)),
        "partition_ids": None if mesh is None else mesh.partition_ids,
    }


def row_named(name: str) -> Row:
    """The row with that name."""
    return next(row for row in ROWS if row.name == name)
