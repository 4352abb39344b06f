"""HLO text and the module it describes. Imports neither JAX nor networkx.

The grammar in `hlo.lark` is the one definition of the language, and a parse of every line would take thirty times as
long as XLA does. The fast path parses what lines have in common once. Take the line

    %ar.1 = f32[8,512]{1,0} all-reduce(%x.7), channel_id=1, to_apply=%add, metadata={op_name="psum"}

`scanner` cuts the lines of a text by the one regular expression of its `Dialect` (`records`) into columns: the name
`ar.1`, the opening `f32[8,512]{1,0} all-reduce(%`, the operands `x.7`, the attributes
`, channel_id=1, to_apply=%add`, and the metadata; no configuration follows. Each opening and each run of attributes is
read once per text, by its form, in which every number is 1: the grammar reads `, channel_id=1, to_apply=%add` once for
all channels, and states which of its keys call computations. Only shapes are read number by number, each once. The
names, forms and operands go into `columns` as a whole; `ir` provides views of modules, computations and instructions.
Attributes and metadata stay in the text; they are cut out of their line and read on demand.

A line that the expression does not match is parsed separately. If that fails, or a name is not defined, the scanner
raises `FallbackToGrammar`, and `parser` reads from that computation on by the grammar's rule for a whole text.
`grammar` joins the automaton (made by Lark, kept in `tables.json`, run by `lalr`) and its callbacks, which make
`records`; the `Builder` of `columns` turns those into columns.
"""

from hloscope.hlo.columns import StackFrame
from hloscope.hlo.ir import HloComputation, HloInstruction, HloModule
from hloscope.hlo.parser import parse_module, parse_modules, pause_collector, select_module_text
from hloscope.hlo.records import Layout, Shape, Sharding

__all__ = [
    "HloComputation",
    "HloInstruction",
    "HloModule",
    "Layout",
    "Shape",
    "Sharding",
    "StackFrame",
    "parse_module",
    "parse_modules",
    "pause_collector",
    "select_module_text",
]
