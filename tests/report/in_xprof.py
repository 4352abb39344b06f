"""Asks XProf what its tools would show of a profile.

`python in_xprof.py FOLDER TOOL...` prints the data of each tool as JSON; `memory_viewer:MODULE` is that of one module.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from xprof.convert import raw_to_tool_data

_ASKED = {"memory_space": "0", "trace_viewer_options": {}}


def main(folder: str, *tools: str) -> None:
    files = [str(file) for file in Path(folder).rglob("*.xplane.pb")]
    raw_to_tool_data.xspace_to_tool_names(files)  # keeps the modules for tools that show one
    found = {}
    for tool in tools:
        name, _, module = tool.partition(":")
        data, _ = raw_to_tool_data.xspace_to_tool_data(files, name, _ASKED | {"module_name": module})
        assert data is not None, f"{tool} has no data"
        found[tool] = json.loads(data)
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
