"""The pages of what contracts, baselines and checks find, as `hloscope rules` prints a rule's page."""

from __future__ import annotations

from hloscope.contracts.baselines.against import CHANGED
from hloscope.contracts.checked import COMMENTS_NOT_READ, COULD_NOT_RUN, NO_BASELINE, NOTHING_EXPECTED
from hloscope.contracts.verdict import BreachKind
from hloscope.findings import RuleDoc, Severity, page_of_finding

PAGES: tuple[RuleDoc, ...] = (
    page_of_finding(
        BreachKind.BROKEN,
        Severity.ERROR,
        "The program moves, takes or waits for more than its contract says, or not what it says.",
        "holds each clause of the target's contract against the compiled program.",
        "a collective that nobody asked for often costs more than the computation it stands beside.",
        '`contract = ["all-reduce@model <= 2MB", "nothing else"]`, and the program gathers its weights as well.',
        "another sharding; or, when the traffic is meant, the line after `to accept it`.",
    ),
    page_of_finding(
        BreachKind.UNDECIDED,
        Severity.ERROR,
        "Something that the contract depends on is not known, so it can be neither kept nor broken.",
        "fails a contract over text that was not understood, opaque kernels, loops whose end is decided at run time, "
        "and limits on a time or a memory that is not known.",
        "what is unknown is not zero: a contract that passes over it proves nothing.",
        "`no all-gather`, over a program with a Pallas kernel that communicates by itself.",
        '`trips "file.py:40" = 16` for such a loop, or `at-least-ok` to check what is known.',
    ),
    page_of_finding(
        BreachKind.VACUOUS,
        Severity.ERROR,
        "Nothing that the program could do would break the contract.",
        "notices programs on one device, dead code, axes of size 1 and axes that the mesh does not have.",
        "a test that cannot fail is worse than none: it is believed.",
        "`no all-gather@fspd`, on a mesh whose axis is called fsdp.",
        "a mesh with the axes that the contract names, and a function that returns what it computes.",
    ),
    page_of_finding(
        CHANGED,
        Severity.ERROR,
        "The program does not move what it moved when its baseline was accepted.",
        "matches the program's collectives with the rows of the baseline by kind, axes and source; names, lines, "
        "versions and the number of transfers for the same bytes do not count.",
        "a change of sharding, of JAX or of the compiler shows before it is paid for.",
        "+1 all-gather fsdp 1 x 12.6 MB  moe.py:91 in expert (is not in the baseline)",
        "`hloscope accept`, when the change is meant; the difference of the file is there for review.",
    ),
    page_of_finding(
        NOTHING_EXPECTED,
        Severity.ERROR,
        "A target has neither a contract nor a baseline.",
        "fails targets of which nothing is expected.",
        "their check could not fail.",
        "[tool.hloscope.targets.step] with a function and no contract, before `hloscope accept`.",
        "a contract, or a baseline.",
    ),
    page_of_finding(
        NO_BASELINE,
        Severity.NOTE,
        "A target with a contract has no baseline file.",
        "mentions it, and does not fail.",
        "what the contract leaves open can change unseen.",
        "a target that was just added.",
        "`hloscope accept`, or `baseline = false`.",
    ),
    page_of_finding(
        COMMENTS_NOT_READ,
        Severity.NOTE,
        "What rules find fails a target of HLO text, and comments in its source files were not read.",
        "names the files; those that HLO text names are opened only in the folder of `source-root`.",
        "a comment that accepts the finding may stand there, and text from elsewhere could name any file.",
        '`hlo = "step.hlo"` with `fail-on = "warning"`, and no `source-root`.',
        "`source-root`, the folder of the code that was compiled, or `allow` in the target.",
    ),
    page_of_finding(
        COULD_NOT_RUN,
        Severity.ERROR,
        "A target could not be analysed.",
        "reports bad input, and programs that JAX or the compiler refuses.",
        "what was not analysed was not checked.",
        "a function that does not exist any more.",
        "what the message says.",
    ),
)
