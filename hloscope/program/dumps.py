"""What the compiler writes down on its way: the module before Shardy's propagation, and the one just partitioned."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_OPTIONS: Mapping[str, Any] = {
    "xla_dump_hlo_as_text": True,
    "xla_dump_hlo_as_long_text": True,
    "xla_dump_hlo_pass_re": "shardy-xla|spmd-partitioning",
}
_PARTITIONED = re.compile(r"after_(tpu-)?spmd-partitioning\.")
_FINAL = ("*after_codegen.txt", "*after_optimizations.txt")


@dataclass(frozen=True, slots=True, kw_only=True)
class Dumps:
    """Texts that one compile wrote; None where it wrote none.

    Attributes:
        before_propagation: The module that Shardy was about to propagate, in MLIR.
        partitioned: The HLO right after the partitioner, with the collectives as it put them.
        final: The HLO as it is run.
    """

    before_propagation: str | None = None
    partitioned: str | None = None
    final: str | None = None


@contextmanager
def dump_folder(options: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], Path | None]]:
    """Compiler options that make one compile write its dumps, and their folder, which lives as long as the block.

    A folder of its own for each compile, because XLA numbers the modules of a process. Users who give `xla_dump_to`
    themselves keep their dumps, and there is no folder.

    Source: XLA's debug options in xla.proto; a pass pattern selects the text before and after the passes it matches.
    """
    if "xla_dump_to" in options:
        yield dict(options), None
        return
    with tempfile.TemporaryDirectory(prefix="hloscope-", ignore_cleanup_errors=True) as folder:
        yield {**options, **_OPTIONS, "xla_dump_to": folder}, Path(folder)


def read_dumps(folder: Path | None) -> Dumps:
    """The texts that matter, out of all that a compile wrote."""
    if folder is None:
        return Dumps()
    partitioned = [path for path in folder.glob("*.txt") if _PARTITIONED.search(path.name)]
    final = next((found for pattern in _FINAL if (found := sorted(folder.glob(pattern)))), [])
    return Dumps(
        before_propagation=_largest(folder.glob("shardy/*/01.before_propagation.mlir")),
        partitioned=_largest(partitioned),
        final=_largest(final),
    )


def _largest(paths: Iterator[Path] | list[Path]) -> str | None:
    """The text of the largest file: a compile may also write dumps of small modules of its own."""
    found = max(paths, key=lambda path: path.stat().st_size, default=None)
    return None if found is None else found.read_text(encoding="utf-8", errors="replace")
