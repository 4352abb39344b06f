"""The size and shape of the package, room by room: `python tests/house/measures.py` prints both.

Lines of code are lines with code in them: blank lines, comments and docstrings of modules, classes and functions are
left out, as are generated files and the cases in files of rules. Lines of templates count.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

from imports import PACKAGE, ROOT, find_circles, find_graph, find_imports, find_longest_path, find_modules

TEMPLATES = (".html", ".jinja", ".j2")
GENERATED = "written by `python docs/schemas.py`"
"""Words in the head of a generated file."""
CASES = {"VALID", "INVALID", "CASES"}
"""Names in a rule's file whose values are its cases."""
TWO_LINES_OF_HLO = "HloModule m\nENTRY e { ROOT p = f32[4] parameter(0) }\n"


def count_code_lines(text: str) -> int:
    """Lines of a Python file that hold code; 0 for a generated file."""
    if any(GENERATED in line for line in text.splitlines()[:3]):
        return 0
    tree, left_out = ast.parse(text), set[int]()
    for node in [*_docstrings_below(tree), *_cases_in(tree)]:
        left_out.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = (line.strip() for number, line in enumerate(text.splitlines(), 1) if number not in left_out)
    return sum(1 for line in lines if line and not line.startswith("#"))


def _docstrings_below(tree: ast.Module) -> list[ast.stmt]:
    holders = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return [
        node.body[0]
        for node in ast.walk(tree)
        if isinstance(node, holders) and ast.get_docstring(node, clean=False) is not None
    ]


def _cases_in(tree: ast.Module) -> list[ast.stmt]:
    assigned = [node for node in tree.body if isinstance(node, ast.Assign | ast.AnnAssign)]
    return [node for node in assigned if _targets_of(node) & CASES]


def _targets_of(node: ast.Assign | ast.AnnAssign) -> set[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return {target.id for target in targets if isinstance(target, ast.Name)}


def count_by_room(root: Path = ROOT) -> dict[str, tuple[int, int]]:
    """Modules and lines of code (templates included) of each room; `.` holds the modules outside all rooms."""
    modules, lines = Counter[str](), Counter[str]()
    for path in sorted((root / PACKAGE).rglob("*")):
        parts = path.relative_to(root / PACKAGE).parts
        room = parts[0] if len(parts) > 1 else "."
        if path.suffix == ".py":
            modules[room] += 1
            lines[room] += count_code_lines(path.read_text())
        elif path.suffix in TEMPLATES:
            lines[room] += sum(1 for line in path.read_text().splitlines() if line.strip())
    return {room: (modules[room], lines[room]) for room in sorted(modules)}


def find_repeated_classes(root: Path = ROOT) -> dict[str, list[str]]:
    """Public class names that more than one module defines, with those modules."""
    found = defaultdict(list)
    for name, path in find_modules(root).items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(name)
    return {name: modules for name, modules in sorted(found.items()) if len(modules) > 1}


def find_modules_loaded(root: Path = ROOT) -> list[str]:
    """Modules of the package that `hloscope analyze` loads for an HLO text of two lines."""
    program = (
        "import sys, tempfile, pathlib\n"
        "from click.testing import CliRunner\n"
        "from hloscope.cli import group\n"
        "file = pathlib.Path(tempfile.mkdtemp()) / 'm.hlo'\n"
        f"file.write_text({TWO_LINES_OF_HLO!r})\n"
        "done = CliRunner().invoke(group, ['analyze', str(file)])\n"
        "assert done.exit_code == 0, done.output\n"
        f"print(*sorted(name for name in sys.modules if name.partition('.')[0] == {PACKAGE!r}), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=True)
    return done.stderr.split()  # standard output belongs to the command's report


def measure(root: Path = ROOT) -> dict[str, object]:
    """Every figure of the house by name."""
    rooms = count_by_room(root)
    imports = find_imports(find_modules(root))
    statements = find_graph([each for each in imports if each.written == "statement"])
    circles = find_circles(find_graph(imports))
    return {
        "modules": sum(modules for modules, _ in rooms.values()),
        "lines of code": sum(lines for _, lines in rooms.values()),
        "longest import path": len(find_longest_path(statements)) - 1,
        "longest import path, lazy and type-only imports counted": len(
            find_longest_path(find_graph([each for each in imports if each.written != "string"]))
        )
        - 1,
        "largest circle": max(map(len, circles), default=1),
        "modules loaded for HLO text": len(find_modules_loaded(root)),
        "class names used twice": len(find_repeated_classes(root)),
        "rooms": rooms,
    }


if __name__ == "__main__":
    print(json.dumps(measure(Path(sys.argv[1]).resolve() if sys.argv[1:] else ROOT), indent=1))
