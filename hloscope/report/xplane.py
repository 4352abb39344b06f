"""A prediction as a profile that XProf opens, in a folder as `jax.profiler` writes it; nothing in it was measured."""

from __future__ import annotations

import hashlib
import importlib.util
import re

from hloscope.base.canvas import Canvas
from hloscope.base.documents import encode_document
from hloscope.base.errors import TargetError
from hloscope.base.outputs import OutputFiles
from hloscope.compile import client
from hloscope.compile.buffers import encode_peak
from hloscope.compile.hlo_files import make_hlo_proto
from hloscope.measurement.predicted_profile import make_predicted_profile
from hloscope.measurement.profiles import PREDICTED, write_xspace
from hloscope.model.capture import Capture, find_evidence
from hloscope.model.timeline import Timeline
from hloscope.report.renderer import Renderer

_HOST = f"{PREDICTED}_by_hloscope"
_DERIVED = ("*.op_stats*.pb", "*.hlo_proto.pb", "*.SSTABLE", "*.trace*", "cache_version.txt")
"""Files that XProf derives from a profile and reads instead of it the next time."""

_NO_HLO = "the profile holds no HLO, so that XProf's graph viewer and memory viewer stay empty: {}"
_MOST_LETTERS, _DIGITS = 200, 8
"""Lengths of parts of a folder's name, which most file systems limit to 255 bytes."""


class XPlane(Renderer):
    """A timeline as a folder for XProf."""

    writes = "folder"

    def render_timeline(self, found: Timeline, canvas: Canvas) -> OutputFiles:
        """The profile, as a run whose name, host and figures say that it is predicted.

        Raises:
            TargetError: The program is not available in this process.
        """
        evidence = find_evidence(found)
        if evidence is None:
            raise TargetError(
                f"the compiled program of {found.target}, which a profile holds, is not known here",
                why="the timeline was read from a document, or made in another process",
                fix="make the timeline again: hloscope.timeline(target, …).save(path, 'xplane')",
            )
        program, module = evidence.program, evidence.module()
        proto, missing = _make_proto(program, found.target, module.device_count)
        profile = make_predicted_profile(found, program, module, proto=proto)
        run = _name_run(found, program.compiled.text)
        return OutputFiles(
            contents={f"plugins/profile/{run}/{_HOST}.xplane.pb": write_xspace(profile)},
            opened_by="XProf",
            stale=_DERIVED,
            notes=(*profile.notes, *missing),
        )


def _name_run(found: Timeline, text: str) -> str:
    """The run's folder, by which XProf lists it: one for each program and prediction, so that none replaces another."""
    content = f"{text}\n{encode_document(found)}".encode("utf-8", "replace")
    name = re.sub(r"[^\w.\-]+", "-", f"{PREDICTED}_{found.module}_{found.slice}")[:_MOST_LETTERS]
    return f"{name}_{hashlib.sha256(content).hexdigest()[:_DIGITS]}"


def _make_proto(program: Capture, name: str, devices: int) -> tuple[bytes, tuple[str, ...]]:
    """The program for XProf's viewers, with its memory if known; a note if it is missing."""
    if importlib.util.find_spec("jaxlib") is None:
        return b"", (_NO_HLO.format("jaxlib is not installed"),)
    try:
        module = client.convert_text_to_proto(program.compiled.text, name)
    except ValueError as error:
        return b"", (_NO_HLO.format(f"jaxlib cannot read it: {error}"),)
    peak = program.compiled.hbm_peak
    assignment = b"" if peak is None else encode_peak(peak, module)
    partitions = (program.compiled.device_ids or range(devices))[:devices]  # those of one slice, as its text has them
    return make_hlo_proto(module, partitions, assignment), ()
