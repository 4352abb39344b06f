"""The pages of what a verification finds, as `hloscope rules` prints a rule's page."""

from __future__ import annotations

from hloscope.findings import RuleDoc, Severity, page_of_finding
from hloscope.verification.communication import MORE, UNSURE
from hloscope.verification.judging import (
    BIASED,
    COPIES_DIFFER,
    NOT_COMPARED,
    NOT_RUN,
    NOTHING,
    OTHER_SHARDING,
    OTHER_STRUCTURE,
    ROUNDS_MORE,
    UNINFORMATIVE,
    WRONG,
)
from hloscope.verification.model import UNTESTED, NumericsStatus

_NOT_RUN_MATTERS = "nothing is known about the numbers, so the program is not verified."

PAGES: tuple[RuleDoc, ...] = (
    page_of_finding(
        WRONG,
        Severity.ERROR,
        "An output differs from the reference's by more than its tolerance.",
        "runs both programs on the same inputs and compares each output element by element, shard by shard.",
        "the program computes something else: a missing reduction, a dropped shard, a wrong ring step.",
        "result differs from the reference in 512 of 1,024 elements, on 4 of 8 devices (X=1)",
        "what the reference does: the worst element and the devices that hold it say where to look; where the "
        "difference is rounding that is meant, --rtol or --atol.",
    ),
    page_of_finding(
        BIASED,
        Severity.ERROR,
        "The errors of an output share a ratio or a sign, although each is within its tolerance.",
        "looks for one constant ratio between the program and the reference, or for errors that nearly all point one "
        "way, beyond what the rounding of one shared scalar can cause.",
        "rounding scatters; a factor does not: a mean over one element too many, or a gradient scaled twice, hides "
        "below any tolerance of a narrow type.",
        "every element of result is 1.020 times the reference's",
        "the factor that the ratio names: the size of a mesh axis, n / (n - 1), a learning rate.",
    ),
    page_of_finding(
        ROUNDS_MORE,
        Severity.ERROR,
        "An output is rounded more than the reference's, by a step that only the program has.",
        "compares the size of the errors with what rounding does to the reference, and looks for a loop or a sum that "
        "accumulates in a narrower type.",
        "a bf16 carry over thousands of steps loses what each step adds.",
        "a loop of 4,096 steps adds up in bfloat16",
        "accumulation in the reference's type, such as preferred_element_type=jnp.float32; where the rounding is "
        "meant, --rtol.",
    ),
    page_of_finding(
        COPIES_DIFFER,
        Severity.ERROR,
        "Copies of one output on several devices are not equal.",
        "compares all copies of a replicated output with the first.",
        "a program that believes an array replicated, where it is not, goes on with whichever copy it meets.",
        "the copies of result differ in 64 of 64 elements: those of 7 of 8 devices from the first",
        "the missing psum or pmean before the output, or out_specs that say that it is sharded.",
    ),
    page_of_finding(
        UNTESTED,
        Severity.WARNING,
        "A part of an argument changes no output for the inputs that were tried.",
        "changes each shard of each argument, or asks a reverse pass, and reports the shards that nothing depends on, "
        "and arguments of many shards where that would take too long.",
        "the verdict does not speak for them: indices that never reach the middle of a table compare nothing there. "
        "--strict makes it fail.",
        "untested: W on 6 of 8 devices (X=1; X=2; and 4 more)",
        "inputs that reach all of it: --range B=0:8 for indices, other sizes, another seed; --scale for short runs.",
    ),
    page_of_finding(
        NOTHING,
        Severity.ERROR,
        "No output could be compared, or none that was says anything.",
        "fails a verification whose outputs have no shape in common, or are empty, not finite or zero everywhere.",
        "two programs that return nothing but zeros agree whatever they compute.",
        "a function that returns only the norm of gradients that are all zero for the inputs tried.",
        "inputs that reach what the program computes (--range B=0:8 for indices), or more outputs.",
    ),
    page_of_finding(
        UNINFORMATIVE,
        Severity.WARNING,
        "An output, or most of it on some devices, says nothing about the program.",
        "notices outputs that are empty, zero or not finite, or that rounding alone can change so that they are not "
        "judged, and devices whose numbers are so small that zeros would pass.",
        "what was compared there proves nothing.",
        "result[1] is zero, not finite or within its tolerance of zero everywhere: it says nothing",
        "inputs of another range (--range x=-1:1), or a smaller --atol.",
    ),
    page_of_finding(
        NOT_COMPARED,
        Severity.ERROR,
        "A part of what was to be compared could not be.",
        "reports outputs and gradients that one of the programs does not have, or that cannot be computed.",
        "the rest of the verdict does not speak for them.",
        "the gradients could not be compared, since the program has no output of floats.",
        "what the message says.",
    ),
    page_of_finding(
        NOT_RUN[NumericsStatus.REFUSED],
        Severity.ERROR,
        "The reference does not take the program's arguments.",
        "stops before the run when both cannot be given the same inputs.",
        _NOT_RUN_MATTERS,
        "a reference that takes the batch as its first argument, where the program takes it as its second.",
        "a reference with arguments of the same shapes and types, in the same order.",
    ),
    page_of_finding(
        NOT_RUN[NumericsStatus.FAILED],
        Severity.ERROR,
        "One of the two programs raised an error while it ran.",
        "runs both in a process of their own and shows what was raised.",
        _NOT_RUN_MATTERS,
        "an assertion in a host callback.",
        "what the message says.",
    ),
    page_of_finding(
        NOT_RUN[NumericsStatus.HUNG],
        Severity.ERROR,
        "The run did not end in its time.",
        "ends the process of the run after --timeout.",
        "a collective that not all devices reach waits for ever, on a TPU as well.",
        "a psum under a branch that each device decides by itself.",
        "a collective that every device reaches; or more time (--timeout), where the run is only slow.",
    ),
    page_of_finding(
        NOT_RUN[NumericsStatus.ABORTED],
        Severity.ERROR,
        "The process of the run was ended by the runtime.",
        "runs both programs in a process of their own and notices how it ends.",
        _NOT_RUN_MATTERS,
        "the runtime gives up on a collective that not all devices reach.",
        "a collective that every device reaches.",
    ),
    page_of_finding(
        NOT_RUN[NumericsStatus.NOT_IMPLEMENTED],
        Severity.ERROR,
        "The backend that the programs run on has no such operation.",
        "reports operations that the CPU's runtime does not implement.",
        _NOT_RUN_MATTERS,
        "ragged_all_to_all on CPUs.",
        "the same said through operations that the backend has, or an attached TPU.",
    ),
    page_of_finding(
        NOT_RUN[NumericsStatus.TOO_LARGE],
        Severity.ERROR,
        "Both programs need more memory than there is.",
        "estimates the memory of both before they run.",
        _NOT_RUN_MATTERS,
        "a step of 70 billion parameters on a laptop.",
        "smaller sizes, such as --scale B=64,F=256.",
    ),
    page_of_finding(
        NOT_RUN[NumericsStatus.NOT_RUN],
        Severity.ERROR,
        "The programs were not run.",
        "says so where the numbers were not asked for, or something before them failed.",
        _NOT_RUN_MATTERS,
        "a program whose structure already differs from its reference's.",
        "what the message says.",
    ),
    page_of_finding(
        OTHER_STRUCTURE,
        Severity.ERROR,
        "The program returns other arrays than its reference.",
        "compares the number, the shapes, the types and the names of the outputs.",
        "what takes the program's place must return what it returned.",
        "result[0] is bf16[128,512], and f32[128,512] in the reference",
        "outputs of the reference's shapes and types, in its order.",
    ),
    page_of_finding(
        OTHER_SHARDING,
        Severity.WARNING,
        "An output lies on the devices otherwise than the reference's.",
        "compares the shardings and the shapes on a device of the outputs.",
        "what comes after one of the two may have to move the data first.",
        "result is sharded P('X', None) (f32[16,512] on a device), and P(None, None) in the reference",
        "the same output sharding for both.",
    ),
    page_of_finding(
        MORE,
        Severity.ERROR,
        "The program moves more than its reference.",
        "matches the collectives of both and reports each that only the program has; a note where the bytes over its "
        "axes do not grow.",
        "a rewrite that computes the same and moves more is slower.",
        "1 all-gather over X: 12.6 MB per step and device more than in the reference",
        "what the reference does; its reason stands below the finding.",
    ),
    page_of_finding(
        UNSURE,
        Severity.WARNING,
        "Whether the program moves no more than its reference is not known.",
        "reports collectives whose bytes or counts are not exact, and text that was not understood.",
        "what is unknown is not zero.",
        "a Pallas kernel that communicates by itself.",
        "static bounds of loops; else nothing, when it is known otherwise that this is meant.",
    ),
)
