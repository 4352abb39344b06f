"""HLO text and the module it describes. The only door to Lark for HLO; imports neither JAX nor networkx.

The grammar in `hlo.lark` is the one definition of the language, and a parse of every line would take thirty times as
long as XLA does. The fast path parses what lines have in common once. Take the line

    %ar.1 = f32[8,512]{1,0} all-reduce(%x.7), channel_id=1, to_apply=%add, metadata={op_name="psum"}

`scanner` takes a stretch of lines at a time; `chunks` cuts it by the one regular expression of `line_patterns` into
columns: the name `ar.1`, the opening `f32[8,512]{1,0} all-reduce(%`, the operands `x.7`, the attributes
`, channel_id=1, to_apply=%add`, and the metadata; behind it stands no configuration. `line_cache` has a dictionary of
the openings, one of the attributes and one of the configurations that this text has shown before. A word that is new
is learnt by its form, in which every number is 1: the grammar reads `, channel_id=1, to_apply=%add` once for all
channels, and says which of its keys call. Only shapes are read number by number, each once. The names, forms and
operands go into `columns` whole, of which `ir` shows modules, computations and instructions as views; attributes and
metadata stay in the text, and are cut out of their line, and read by `decode`, when somebody asks for them.

A line that the expression does not match is parsed by itself. Where that fails, or a name is not defined, the scanner
raises `FallbackToGrammar`, and `parser` reads from that computation on by the grammar's rule for a whole text.
`language` joins the automaton (`tables`, made by Lark; run by `lalr_runtime`) and its callbacks (`grammar_actions`,
`value_actions`), which make `records`; `builder` turns those into columns.
"""

from hloscope.hlo.columns import Frame
from hloscope.hlo.ir import HloComputation, HloInstruction, HloModule
from hloscope.hlo.multi_module import module_text
from hloscope.hlo.parser import collector_paused, parse_module, parse_modules
from hloscope.hlo.shape import Layout, Shape
from hloscope.hlo.sharding import Sharding

__all__ = [
    "Frame",
    "HloComputation",
    "HloInstruction",
    "HloModule",
    "Layout",
    "Shape",
    "Sharding",
    "collector_paused",
    "module_text",
    "parse_module",
    "parse_modules",
]
