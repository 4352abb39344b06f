"""A prediction as a profile that XProf opens, in a folder as `jax.profiler` writes it; nothing in it was measured."""

from __future__ import annotations

import importlib.util
import re

from hloscope.analysis.model.timeline import Timeline
from hloscope.compiler import client
from hloscope.compiler.hlo_protos import hlo_proto
from hloscope.errors import TargetError
from hloscope.hlo import parse_module
from hloscope.measured.as_profile import PREDICTED, predicted_profile
from hloscope.outputs import Files
from hloscope.profiles.writing import xspace
from hloscope.program.capture import Capture

_HOST = f"{PREDICTED}_by_hloscope"
_DERIVED = ("*.op_stats*.pb", "*.hlo_proto.pb", "*.SSTABLE", "*.trace*", "cache_version.txt")
"""What XProf makes of a profile, and reads the next time instead of it."""

_NO_JAXLIB = "without jaxlib the profile holds no HLO: XProf's graph viewer and memory viewer stay empty"


def files(found: Timeline) -> Files:
    """The profile, as a run whose name, host and figures say that it is predicted.

    Raises:
        TargetError: The timeline was read from a document, which does not hold the program.
    """
    program = found.program
    if program is None:
        raise TargetError(
            f"the timeline of {found.target} has lost its program, which a profile holds",
            why="it was read from a document",
            fix="make the timeline again: hloscope.timeline(target, …).save(path, 'xplane')",
        )
    module = parse_module(program.compiled.text, name=found.target)
    proto = _proto(program, found.target, module.device_count)
    profile = predicted_profile(found, program, module, proto=proto)
    run = re.sub(r"[^\w.\-]+", "-", f"{PREDICTED}_{found.module}_{found.slice}")
    return Files(
        contents={f"plugins/profile/{run}/{_HOST}.xplane.pb": xspace(profile)},
        opened_with="xprof --logdir {path}",
        stale=_DERIVED,
        notes=(*profile.notes, *(() if proto else (_NO_JAXLIB,))),
    )


def _proto(program: Capture, name: str, devices: int) -> bytes:
    if importlib.util.find_spec("jaxlib") is None:
        return b""
    module = client.text_proto(program.compiled.text, name)
    return hlo_proto(module, program.compiled.device_ids or range(devices))
