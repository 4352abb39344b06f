"""What `to_dict()` returns, for type checkers; written by `python docs/schemas.py`, and never by hand.

What each field means stands in the schemas, `hloscope/schemas/`. A row of a table leaves out what is as its default.
"""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict

ActivityText = Literal["computing", "communication", "host copies", "memory copies"]
ArrayRoleText = Literal["argument", "constraint", "output", "intermediate"]
BoundText = Literal["exact", "at most", "at least", "unknown"]
BufferRoleText = Literal["argument", "output", "saved", "gathered", "copy", "temporary", "constant"]
ChangeKindText = Literal[
    "added",
    "removed",
    "bytes",
    "executions",
    "moved into a loop",
    "moved out of a loop",
    "newly exposed",
    "known less or more surely",
    "regrouped",
    "equivalent spelling",
    "another reduction",
]
CompileStageText = Literal["text", "scheduled", "compiled"]
DecisionKindText = Literal["contended", "sharded", "made-whole", "idle", "authored"]
DimensionRoleText = Literal["batch", "data", "features"]
EdgeKindText = Literal["operand", "argument", "result"]
JudgementText = Literal["same", "better", "worse", "different"]
KindText = Literal[
    "all-gather",
    "all-reduce",
    "reduce-scatter",
    "all-to-all",
    "ragged-all-to-all",
    "collective-permute",
    "collective-broadcast",
    "opaque",
]
LinkText = Literal["ici", "dcn", "ici+dcn", "unknown"]
NumericsStatusText = Literal["ran", "refused", "failed", "hung", "aborted", "not implemented", "too large", "not run"]
OriginText = Literal["authored", "inserted", "rewritten", "unknown"]
PhaseText = Literal["forward", "backward", "optimizer"]
ReasonKindText = Literal[
    "authored",
    "partial-sum",
    "operand-conflict",
    "needs-whole-dimension",
    "indexed-in-loop",
    "halo",
    "constraint",
    "requested-output",
    "merged-dimensions",
    "no-rule",
    "partitioners-choice",
    "unknown",
]
RelationText = Literal["independent", "consumer", "producer"]
RoleText = Literal["weights", "gradient", "activations"]
SeverityText = Literal["error", "warning", "note"]
UnitText = Literal[
    "core",
    "ici",
    "dcn",
    "copy within the device",
    "copy to the host",
    "copy from the host",
    "host",
    "another thread",
]
WaitCauseText = Literal["collective", "hbm", "host", "kernel", "limit"]


class AnalysisDict(TypedDict):
    """Everything hloscope knows about one compiled program."""

    schema: Literal[2]
    target: str
    module: str
    slice: SliceFactDict | None
    mesh: MeshDict | None
    num_partitions: int
    stage: CompileStageText | None
    digest: str | None
    collectives: list[CollectiveDict]
    totals: TotalsDict
    arguments: list[ArrayFactDict]
    outputs: list[ArrayFactDict]
    intermediates: list[IntermediateFactDict]
    matmuls: list[MatmulsDict]
    kernels: list[KernelDict]
    repeated: RepeatedWorkDict | None
    memory: MemoryDict
    memory_peak: MemoryPeakDict | None
    time: StepTimeDict | None
    decisions: list[DecisionDict]
    rematerializations: list[RematerializationDict]
    findings: list[FindingDict]
    unmodelled: list[UnmodelledDict]
    notes: list[str]
    versions: dict[str, str]


class ArrayFactDict(TypedDict):
    """One argument or output array of the program."""

    name: str
    dtype: str
    global_shape: list[int] | None
    local_shape: list[int]
    sharding: str | None
    chosen_by: str | None
    bytes_per_device: int | None
    donated: bool
    used: bool
    reused: bool | None
    wrong: str | None


class AskedByDict(TypedDict):
    """The request that shards an array over an axis."""

    axis: str
    by: str
    name: str | None
    sharding: NotRequired[str | None]
    source: int


class AxisShiftDict(TypedDict):
    """A shift."""

    axes: list[str]
    size: int
    distance: int
    ring: bool


class BiasDict(TypedDict):
    """Systematic errors that rounding does not explain."""

    ratio: float | Literal["inf"]
    constant: bool
    one_way: float | Literal["inf"]
    shards: list[str]
    meaning: str
    explained: float | Literal["inf"]


class CalibratedFigureDict(TypedDict):
    """A figure calibrated from a profile, or refused."""

    name: str
    value: float | None
    before: float | None
    rests_on: int
    why: str | None


class CauseDict(TypedDict):
    """One change of a program, however many lines of its baseline it affects."""

    key: str
    judgement: JudgementText
    message: str
    source: str | None
    why: str | None
    tried: str | None
    wire_bytes: int | None
    time_us: float | None
    is_left_open: bool


class ChangedCollectiveDict(TypedDict):
    """One collective of a change."""

    kind: KindText
    axes: list[str] | None
    payload_bytes: int | None
    wire_bytes: int | None
    bytes_bound: BoundText
    executions: int
    executions_bound: BoundText
    source: str | None


class CheckDict(TypedDict):
    """The check of targets against their contracts and baselines."""

    schema: Literal[2]
    passed: bool
    checks: list[CheckedTargetDict]
    unused_baselines: list[str]
    shard: str | None
    commit: str | None
    seal: str | None
    device_groups: list[list[list[int]]]
    permute_patterns: list[PermutePatternDict]
    values: list[MovedValueDict]
    stacks: list[list[int]]
    frames: list[SourceFrameDict]
    parts: list[ModelPartDict]
    reasons: list[ReasonDict]
    tensors: list[TensorDict]
    operations: list[OperationDict]
    askers: list[AskedByDict]
    places: list[PlaceDict]


class CheckedTargetDict(TypedDict):
    """The check of one target for one slice, as a document."""

    name: str
    passed: bool
    error: str | None
    seconds: float | None
    compile_from: str | None
    contract: str | None
    remarks: list[str]
    baseline: str | None
    judged: JudgedDict | None
    findings: list[FindingDict]
    analysis: AnalysisDict | None


class CheckupDict(TypedDict):
    """One check of the machine or the installation."""

    name: str
    found: str
    works: bool | None
    fix: str | None


class ClaimDict(TypedDict):
    """Which dimension has a mesh axis at an operation, and which one does without."""

    axis: str
    winner: DimensionDict | None
    loser: DimensionDict | None
    other_bytes: int | None
    operation: int | None
    parts: int


class CollectiveDict(TypedDict):
    """One logical collective."""

    kind: KindText
    name: str
    computation: str
    line: int
    axes: list[str] | None
    groups: int
    group_size: int | None
    link: LinkText
    operand_shapes: list[str]
    result_shapes: list[str]
    payload_bytes: int | None
    wire_bytes: int | None
    executions: int
    executions_bound: BoundText
    axes_guessed: bool
    bytes_bound: BoundText
    payload_bytes_at_least: int | None
    wire_bytes_at_least: int | None
    padded_bytes: int | None
    permute: int | None
    result_slices: list[str]
    undone_by: str | None
    moved_values: list[int]
    moves_zeros: bool
    loop_invariant: bool | None
    narrow_type: str | None
    parts: list[CollectivePartDict]
    loops: list[str]
    loop_trips: list[int | None]
    reduction: str | None
    origin: OriginText
    asynchronous: bool
    time_us: float | None
    exposed_us: float | None
    time_error: float | None
    overlap: OverlapDict | None
    op_name: str | None
    source: int
    source_of: str | None
    part: int | None
    why: str | None
    reason: int | None
    tried: str | None
    payload_bytes_per_step: int | None
    wire_bytes_per_step: int | None


class CollectivePartDict(TypedDict):
    """One transfer of a collective across slices."""

    kind: KindText
    name: str
    line: int
    axes: list[str] | None
    groups: int
    group_size: int | None
    link: LinkText
    payload_bytes: int | None
    wire_bytes: int | None
    executions: int
    asynchronous: bool


class CommunicationDict(TypedDict):
    """The communication of a program and its reference."""

    same: bool
    rows: list[TrafficRowDict]
    target_wire_bytes: int
    reference_wire_bytes: int
    bytes_ratio: float | None
    time_ratio: float | None


class CompareDict(TypedDict):
    """A profile compared with the predictions for its programs."""

    schema: Literal[2]
    target: str | None
    profile: str
    chip: str | None
    device_kind: str
    devices: int
    is_prediction: bool
    programs: list[MeasuredProgramDict]
    uncompared: list[UncomparedProgramDict]
    calibration: list[CalibratedFigureDict]
    notes: list[str]


class DecisionDict(TypedDict):
    """The dimension that one mesh axis shards, another one that does without, and what follows from it."""

    name: str
    kind: DecisionKindText
    axis: str
    winner: DimensionDict | None
    loser: DimensionDict | None
    held_by: list[int]
    lost_by: list[int]
    places: list[int]
    collectives: list[str]
    operations: list[str]
    source: int | None
    is_summed: bool
    wire_bytes: int | None
    bound: BoundText
    exposed_us: float | None
    other_bytes: int | None
    repeated_us: float | None
    is_lost: bool
    trials: TrialsDict | None


class DiffDict(TypedDict):
    """The comparison of two programs."""

    schema: Literal[2]
    old: str
    new: str
    same: bool
    changes: list[ListedChangeDict]
    unsure: int
    not_understood: list[str]
    unlike: list[str]
    totals: TwoTotalsDict
    tallies: list[TallyDict]
    peak_bytes: list[int | None]
    step_us: list[float | None]
    step_bounds: list[BoundText | None]
    judged: JudgedDict


class DimensionDict(TypedDict):
    """A class of dimensions."""

    name: str
    size: int
    role: DimensionRoleText | None


class DoctorDict(TypedDict):
    """The results of `hloscope doctor`, as a document."""

    schema: Literal[2]
    checkups: list[CheckupDict]


class DumpedModuleDict(TypedDict):
    """One module in an XLA dump folder, as plain data."""

    schema: Literal[2]
    name: str
    number: str
    file: str
    platform: str | None
    size_bytes: int | None
    seconds: float
    error: str | None
    analysis: AnalysisDict | None


class DumpedModulesDict(TypedDict):
    """All modules in an XLA dump folder."""

    schema: Literal[2]
    folder: str
    modules: list[DumpedModuleDict]
    device_groups: list[list[list[int]]]
    permute_patterns: list[PermutePatternDict]
    values: list[MovedValueDict]
    stacks: list[list[int]]
    frames: list[SourceFrameDict]
    parts: list[ModelPartDict]
    reasons: list[ReasonDict]
    tensors: list[TensorDict]
    operations: list[OperationDict]
    askers: list[AskedByDict]
    places: list[PlaceDict]


class ErrorMapDict(TypedDict):
    """A map of an output's errors."""

    shape: list[int]
    errors: list[list[float]]


class ExplainDict(TypedDict):
    """Explanations of why collectives are there."""

    schema: Literal[2]
    explanations: list[ExplainedCollectiveDict]
    frames: list[SourceFrameDict]
    reasons: list[ReasonDict]
    tensors: list[TensorDict]
    stacks: list[list[int]]
    operations: list[OperationDict]
    askers: list[AskedByDict]


class ExplainedCollectiveDict(TypedDict):
    """A collective, and why it is there."""

    collective: str
    number: int
    kind: KindText
    axes: list[str] | None
    axes_guessed: bool
    copies: int
    place: int | None
    excerpt: str | None
    excerpt_unread: bool
    why: str | None
    steps: list[StepDict]
    equations: list[str]
    advice: list[str]
    decision: str | None
    trials: TrialsDict | None
    origin: OriginText
    payload_bytes: int | None
    wire_bytes: int | None
    executions: int
    executions_bound: BoundText
    wire_bytes_per_step: int | None
    time_us: float | None
    exposed_us: float | None
    reason: int | None


class FigureDict(TypedDict):
    """One figure of a program, before and after."""

    name: str
    unit: str
    before: float | None
    after: float | None
    before_range: list[float] | None
    after_range: list[float] | None
    before_bound: BoundText
    after_bound: BoundText
    comparable: bool


class FiguresDict(TypedDict):
    """The cost of one step on one device."""

    step_us: float | None
    step_us_range: list[float] | None
    step_bound: BoundText
    wire_bytes: int
    wire_bytes_by_axis: dict[str, int]
    wire_bound: BoundText
    hbm_bytes: int | None
    collectives: int
    unknown: list[str]
    slight: list[str]
    rules: list[RuleUseDict]
    compute_us: float | None
    exposed_us: float | None
    conditional_us: float | None
    stage: CompileStageText
    outputs: list[str | None]


class FindingDict(TypedDict):
    """A message about one place of the compiled program."""

    rule: str
    severity: SeverityText
    message: str
    computation: str | None
    instruction: str | None
    line: int | None
    source: str | None
    why: str | None
    cost: str | None
    fix: str | None
    allowed: str | None


class GraphEdgeDict(TypedDict):
    """A dependency of one instruction on another."""

    source: str
    target: str
    kind: EdgeKindText
    position: int
    attribute: str | None


class GraphNodeDict(TypedDict):
    """One instruction."""

    id: str
    computation: str
    name: str
    line: int
    opcode: str
    shape: str
    bytes: int | None
    collective: str | None
    axes: list[str] | None
    wire_bytes: int | None
    time_us: float | None
    bound: BoundText
    executions: int | None
    executions_bound: BoundText
    is_critical: bool
    op_name: str | None
    source: str | None


class IntermediateFactDict(TypedDict):
    """One large intermediate array of the program."""

    name: str
    computation: str
    line: int
    dtype: str
    global_shape: list[int] | None
    local_shape: list[int]
    bytes_per_device: int
    padded_bytes_per_device: int | None
    memory_space: int
    loops: list[str]
    op_name: str | None
    source: int
    source_of: str | None
    sharding: str | None


class IntervalDict(TypedDict):
    """One stretch of time on one unit of the device."""

    name: str | None
    unit: UnitText
    begin_us: float
    end_us: float
    wait: WaitCauseText | None
    waits_for: str | None
    collective: str | None
    rule: str | None
    links: list[str]
    runs: list[TimedRunDict]
    is_prefetch: bool
    issued_us: float | None
    done: str | None
    done_us: float | None
    flops: int | None
    moved_bytes: int | None
    bound: BoundText
    live_bytes: int | None


class JudgedDict(TypedDict):
    """The comparison of a program with its baseline."""

    judgement: JudgementText
    causes: list[CauseDict]
    figures: list[FigureDict]
    versions: str | None
    notes: list[str]
    caveats: list[str]


class KeptWriteDict(TypedDict):
    """A write, removal or request of the script that was redirected or not carried out."""

    what: str
    target: str
    became: str
    where: str | None
    times: int


class KernelDict(TypedDict):
    """A Pallas or Mosaic kernel, or several calls of it that differ only in their place in the text."""

    name: str
    by_compiler: bool
    line: int
    calls: int
    executions: int
    executions_bound: BoundText
    operand_shapes: list[str]
    result_shapes: list[str]
    flops: int | None
    accessed_bytes: int | None
    remote_dma: bool | None
    fingerprint: str | None
    op_name: str | None
    source: int


class ListedChangeDict(TypedDict):
    """One difference."""

    kind: ChangeKindText
    increase: bool
    wire_bytes_per_step: int | None
    bound: BoundText
    text: str
    old: list[ChangedCollectiveDict]
    new: list[ChangedCollectiveDict]


class MatmulsDict(TypedDict):
    """The matmuls and convolutions of one type on one line of user code, per device and per step."""

    dtype: str
    executions: int
    flops: int | None
    bound: BoundText
    recomputed_flops: int
    source: int


class MeasuredAxisDict(TypedDict):
    """The collectives over the same mesh axes, per step."""

    axes: str
    link: LinkText
    collectives: int
    wire_bytes: int | None
    measured_exposed_us: float
    predicted_exposed_us: float | None
    measured_bytes_per_s: float | None
    measured_bound: BoundText
    predicted_bytes_per_s: float | None


class MeasuredOperationDict(TypedDict):
    """One operation on the device's schedule."""

    name: str
    computation: str | None
    opcode: str
    activity: ActivityText | None
    executions: float
    predicted_executions: int | None
    measured_us: float
    predicted_us: float | None
    rule: str | None
    calibrated: bool
    source: str | None


class MeasuredProgramDict(TypedDict):
    """One program in a profile."""

    program: str
    runs: int
    devices: int
    slice: str | None
    slice_chosen_by: str | None
    partitions: int | None
    step: MeasuredStepDict
    parts: list[StepPartDict]
    operations: list[MeasuredOperationDict]
    measured_operations: int
    matched_operations: int
    matched_share: float | None
    transfers: list[MeasuredTransferDict]
    axes: list[MeasuredAxisDict]
    rules: list[MeasuredRuleDict]
    notes: list[str]


class MeasuredRuleDict(TypedDict):
    """The operations that one rule of the cost model priced."""

    rule: str
    operations: int
    measured_us: float
    predicted_us: float
    calibrated: bool


class MeasuredStepDict(TypedDict):
    """The duration of one run."""

    median_us: float
    least_us: float
    most_us: float
    predicted_us: float | None


class MeasuredTransferDict(TypedDict):
    """A collective, or a copy between the host and the device."""

    kind: str
    name: str
    computation: str
    axes: list[str] | None
    executions: float
    wire_bytes: int | None
    measured_us: float | None
    measured_bound: BoundText
    predicted_us: float | None
    measured_exposed_us: float
    predicted_exposed_us: float | None
    measured_hidden_us: float | None
    predicted_hidden_us: float | None
    measured_bytes_per_s: float | None
    predicted_bytes_per_s: float | None
    rule: str | None
    calibrated: bool
    source: str | None


class MemoryDict(TypedDict):
    """Bytes on one device, from the compiler's buffer assignment."""

    argument_bytes: int | None
    output_bytes: int | None
    temp_bytes: int | None
    alias_bytes: int | None
    generated_code_bytes: int | None
    most_code_bytes: int | None
    data_bytes: int | None
    peak_bytes: int | None
    hbm_bytes: int | None
    fits: bool | None


class MemoryPeakDict(TypedDict):
    """Contents of one device's HBM at peak usage, from the compiler's buffer assignment."""

    at: str
    op_name: str | None
    source: int
    live_bytes: int
    fragmentation_bytes: int
    buffers: list[PeakBufferDict]
    other_bytes: int


class MeshDict(TypedDict):
    """The user's logical mesh."""

    axis_names: list[str]
    axis_sizes: list[int]
    axis_types: list[str] | None
    partition_ids: list[int] | None
    made_up: bool


class ModelPartDict(TypedDict):
    """A place in the user's model."""

    module: NotRequired[str | None]
    layers: NotRequired[list[int]]
    phase: NotRequired[PhaseText | None]
    role: NotRequired[RoleText | None]
    arguments: NotRequired[list[str]]
    line: NotRequired[int | None]


class MovedValueDict(TypedDict):
    """The producer of a moved array, traced through copies, conversions and loops that carry it unchanged."""

    computation: str
    instruction: str
    element: NotRequired[list[int]]
    slices: NotRequired[list[str | None]]


class NumericsDict(TypedDict):
    """The result of running both programs on the same random inputs."""

    status: NumericsStatusText
    ran_on: str
    message: str
    seed: int
    inputs: list[str]
    dims: dict[str, int]
    comparisons: list[OutputComparisonDict]
    estimated_bytes: int | None
    available_bytes: int | None
    not_compared: dict[str, str]
    untested: list[UntestedDict]
    other_branches: list[str]
    notes: list[str]


class OperationDict(TypedDict):
    """An operation in the user's program."""

    name: str
    op_name: str | None
    source: int


class OutputComparisonDict(TypedDict):
    """One output of two runs, compared shard by shard."""

    name: str
    against: str
    subject: str
    elements: int
    copies: int
    wrong: int
    shards: int
    wrong_shards: list[str]
    worst: WorstDict | None
    largest_error: float | Literal["inf"]
    informative: bool
    blind_shards: list[str]
    tolerance: ToleranceDict
    bias: BiasDict | None
    roughness: RoughnessDict | None
    unstable: int
    exchanged: list[str]
    error_map: ErrorMapDict | None


class OverlapDict(TypedDict):
    """The longest matrix multiplication that a collective could overlap with."""

    name: str
    relation: RelationText
    time_us: float
    source: int


class PeakBufferDict(TypedDict):
    """One buffer in the HBM of one device, or several that differ only in their layer."""

    role: BufferRoleText
    bytes: int
    count: int
    name: str
    shape: str | None
    op_name: str | None
    source: int
    donation_frees: bool


class PermutePatternDict(TypedDict):
    """A permute that is a uniform shift."""

    shifts: list[AxisShiftDict]
    ring: bool


class PlaceDict(TypedDict):
    """A value where a decision fell."""

    array: str
    source: int
    operation: str | None
    shape: list[int]
    sharding: list[list[str]]
    spec: str
    argument: NotRequired[str | None]


class PriceDict(TypedDict):
    """The prices of one program on several slices, as a document."""

    schema: Literal[2]
    target: str
    prices: list[PricedSliceDict]
    unpriced: list[UnpricedSliceDict]
    device_groups: list[list[list[int]]]
    permute_patterns: list[PermutePatternDict]
    values: list[MovedValueDict]
    stacks: list[list[int]]
    frames: list[SourceFrameDict]
    parts: list[ModelPartDict]
    reasons: list[ReasonDict]
    tensors: list[TensorDict]
    operations: list[OperationDict]
    askers: list[AskedByDict]


class PricedSliceDict(TypedDict):
    """The price of the program on one slice."""

    slice: SliceFactDict | None
    time: StepTimeDict | None
    memory: MemoryDict
    collectives: list[CollectiveDict]
    notes: list[str]


class ProgramGraphDict(TypedDict):
    """A compiled program, or a part of it, as a graph."""

    schema: Literal[2]
    target: str
    module: str
    slice: str | None
    part: str
    nodes: list[GraphNodeDict]
    edges: list[GraphEdgeDict]
    critical_path_us: float | None
    bound: BoundText
    notes: list[str]


class ReasonDict(TypedDict):
    """Why a collective is there."""

    kind: ReasonKindText
    certain: NotRequired[bool]
    axes: NotRequired[list[str]]
    moved: NotRequired[int | None]
    wanted: NotRequired[list[list[str]] | None]
    dimensions: NotRequired[list[int]]
    producer: NotRequired[int | None]
    consumer: NotRequired[int | None]
    operand: NotRequired[int | None]
    operands: NotRequired[list[int]]
    result: NotRequired[int | None]
    summed: NotRequired[list[str]]
    held_by: NotRequired[list[int]]
    asked_by: NotRequired[list[int]]
    conflicting: NotRequired[str | None]
    in_loop: NotRequired[bool]
    loop_invariant: NotRequired[bool]
    candidates: NotRequired[int]
    rewritten_from: NotRequired[str | None]
    combined: NotRequired[int]
    of_part: NotRequired[bool]
    weight: NotRequired[int | None]
    realigns: NotRequired[str | None]
    claims: NotRequired[list[ClaimDict]]
    missing: NotRequired[str | None]


class RecompiledDict(TypedDict):
    """A function that was compiled more than once."""

    name: str
    place: str | None
    versions: int
    changes: list[str]


class RecordedProgramDict(TypedDict):
    """One program that JAX compiled, for one set of argument types."""

    name: str
    place: str | None
    calls: int
    faked: str | None
    took_cpu_branch: bool
    slice_name: str
    device_count: int
    boundary_bytes: int
    flops: float
    rough_us: float
    analysis: AnalysisDict | None
    error: str | None


class RecordingDict(TypedDict):
    """The programs that a script compiled."""

    schema: Literal[2]
    command: list[str]
    slice_name: str
    asked: list[str]
    ended: str
    exit_status: int | None
    said: str
    programs: list[RecordedProgramDict]
    small: SmallProgramsDict | None
    recompiled: list[RecompiledDict]
    kept_writes: list[KeptWriteDict]
    notes: list[str]
    versions: dict[str, str]
    device_groups: list[list[list[int]]]
    permute_patterns: list[PermutePatternDict]
    values: list[MovedValueDict]
    stacks: list[list[int]]
    frames: list[SourceFrameDict]
    parts: list[ModelPartDict]
    reasons: list[ReasonDict]
    tensors: list[TensorDict]
    operations: list[OperationDict]
    askers: list[AskedByDict]
    places: list[PlaceDict]


class RematerializationDict(TypedDict):
    """The partitioner's warning that it can only replicate an array to change its sharding."""

    op_name: str | None
    opcode: str
    shape: str
    before: str
    after: str
    source: int
    text: str


class RepeatedLineDict(TypedDict):
    """A line of user code whose matmuls and convolutions are done several times."""

    ratio: float
    axes: list[str]
    devices: int
    module: str | None
    source: int


class RepeatedWorkDict(TypedDict):
    """The FLOPs of matmuls, convolutions and kernels that devices do beyond those of the traced program."""

    ratio: float | None
    bound: BoundText
    padding: float
    recomputed: float
    traced_flops: float
    compiled_flops: float
    lines: list[RepeatedLineDict]


class RoughnessDict(TypedDict):
    """Errors that are larger overall than the reference's own rounding."""

    times: float | Literal["inf"]
    own: bool
    words: str


class RuleUseDict(TypedDict):
    """One rule of the cost model and its contribution to the step."""

    rule: str
    time_us: float
    calibrated: bool
    measured_once: bool
    error: float
    more_us: float
    less_us: float


class ShardedArrayDict(TypedDict):
    """One array of the program, with its sharding."""

    role: ArrayRoleText
    name: str
    element_type: str
    global_shape: list[int]
    local_shape: list[int]
    sharding: str
    bytes_per_device: int | None
    source: int | None
    is_moved: bool


class ShardingTableDict(TypedDict):
    """The shardings of a program's arrays, as Shardy propagates them."""

    schema: Literal[2]
    target: str
    slice_name: str
    axis_sizes: dict[str, int]
    arrays: list[ShardedArrayDict]
    unused: list[str]
    notes: list[str]
    frames: list[SourceFrameDict]


class SliceFactDict(TypedDict):
    """The slice that the program was compiled for or is priced on."""

    name: str
    chip: str
    chips: int
    devices: int
    slices: int
    used_devices: int
    chosen_by: str


class SmallProgramsDict(TypedDict):
    """Small programs of JAX itself, such as `jnp.add` outside `jax.jit`, which are listed together."""

    programs: int
    calls: int
    names: list[str]
    boundary_bytes: int
    rough_us: float


class SourceEditDict(TypedDict):
    """A change of the user's source, in whole lines."""

    file: str
    line: int
    before: str
    after: str


class SourceFrameDict(TypedDict):
    """One frame of the user's Python stack at an operation."""

    file: str
    line: int
    function: NotRequired[str | None]
    column: NotRequired[int | None]


class SpreadDict(TypedDict):
    """The error of predictions on held-out measurements of a generation."""

    rows: int
    median: float
    worst: float


class StepDict(TypedDict):
    """One step in the chain of causes."""

    what: str
    arrays: list[str]
    becomes: str | None
    source: int | None
    is_loss: bool


class StepPartDict(TypedDict):
    """One part of the step."""

    part: str
    measured_us: float
    predicted_us: float | None


class StepTimeDict(TypedDict):
    """The predicted time of one step on one device, in the steady state."""

    step_us: float
    compute_us: float
    exposed_us: float
    hidden_us: float
    hbm_us: float
    least_us: float
    most_us: float
    first_step_us: float
    flops: int
    peak_flops_share: float | None
    basis: str
    is_scheduled: bool
    roofline_us: float
    bound: BoundText
    conditional_us: float | None
    rules: list[RuleUseDict]
    spread: SpreadDict | None
    unknown_operations: list[UnknownOperationDict]
    unpriced_kernels: list[str]
    notes: list[str]
    calibrated: list[str]
    uncalibrated: list[str]


class SuggestedSpecDict(TypedDict):
    """The sharding suggested for an argument, a result, or all arrays of one kind."""

    name: str
    count: int
    is_result: bool
    before: str | None
    after: str | None
    notation: str | None
    is_open: bool


class SuggestionDict(TypedDict):
    """One way to shard the program, compiled and priced at full size."""

    recipe: str | None
    mesh: dict[str, int]
    device_order: list[int] | None
    is_own: bool
    fits: bool
    figures: FiguresDict
    gain: float | None
    is_tie: bool
    is_worth_it: bool
    specs: list[SuggestedSpecDict]
    constraints: list[str]
    because: list[str]
    code: list[str]
    edits: list[SourceEditDict]
    by_hand: list[str]


class SuggestionsDict(TypedDict):
    """The result of a search for better shardings."""

    schema: Literal[2]
    target: str
    slice: str
    goal: str
    own: SuggestionDict
    front: list[SuggestionDict]
    freed_gain: float | None
    freed: list[str]
    space: int
    ranked: int
    compiled: int
    failed: int
    failures: dict[str, int]
    refused: int
    recipes: dict[str, float]
    notes: list[str]
    stopped: str | None
    seconds: float


class TallyDict(TypedDict):
    """Sums over the collectives of one kind over the same axes, per device and per step, before and after."""

    kind: KindText
    axes: str
    old: TotalDict
    new: TotalDict
    axes_guessed: bool


class TensorDict(TypedDict):
    """A global array of the user's program, with its sharding."""

    name: str
    named: bool
    element_type: str
    shape: list[int]
    letters: list[str]
    sharding: list[list[str]] | None
    partial_over: NotRequired[list[str]]
    argument: NotRequired[str | None]
    source: int


class TimedComputationDict(TypedDict):
    """One computation of the schedule, listed once however often it runs."""

    name: str
    executions: int
    executions_beside: int
    executions_bound: BoundText
    time_us: float
    bound: BoundText
    intervals: list[IntervalDict]


class TimedRunDict(TypedDict):
    """A computation run by an instruction."""

    computation: str
    times: int
    bound: BoundText


class TimelineDict(TypedDict):
    """The predicted timeline of one step."""

    schema: Literal[2]
    target: str
    module: str
    slice: str
    step_us: float
    bound: BoundText
    computing_us: float
    waits: WaitsDict
    hidden_us: float
    entry: str
    computations: list[TimedComputationDict]
    collectives: list[CollectiveDict]
    notes: list[str]
    device_groups: list[list[list[int]]]
    permute_patterns: list[PermutePatternDict]
    values: list[MovedValueDict]
    stacks: list[list[int]]
    frames: list[SourceFrameDict]
    parts: list[ModelPartDict]
    reasons: list[ReasonDict]
    tensors: list[TensorDict]
    operations: list[OperationDict]
    askers: list[AskedByDict]


class ToleranceDict(TypedDict):
    """The allowed difference of two floating-point numbers."""

    relative: float | Literal["inf"]
    absolute: float | Literal["inf"]
    source: Literal["rounding", "types", "user"]


class TotalDict(TypedDict):
    """A sum over collectives, per device and per step."""

    wire_bytes: int
    payload_bytes: int
    collectives: int
    executions: int
    bound: BoundText


class TotalsDict(TypedDict):
    """Sums over all collectives, per device and per step, in total and by group."""

    wire_bytes: int
    payload_bytes: int
    collectives: int
    executions: int
    bound: BoundText
    by_axis: dict[str, TotalDict]
    by_kind: dict[str, TotalDict]
    by_link: dict[str, TotalDict]


class TrafficRowDict(TypedDict):
    """The communication of both programs with collectives of one kind over the same axes, per device and per step."""

    kind: str
    axes: str
    reference: TotalDict
    target: TotalDict
    reference_us: float | None
    target_us: float | None


class TrialDict(TypedDict):
    """One change and the cost of the program compiled with it."""

    change: list[str]
    after: FiguresDict | None
    problem: str | None
    helps: bool
    frees_output: bool
    opened: list[str]
    pads: bool
    moves: list[str]
    moving_us: float | None
    before: FiguresDict | None


class TrialsDict(TypedDict):
    """The changes tried against one collective."""

    before: FiguresDict | None
    trials: list[TrialDict]
    candidates: int
    not_tried: str | None
    verdict: str
    stopped: bool
    seconds: float


class TwoMemoriesDict(TypedDict):
    """Memory use of both programs in bytes, per device."""

    target: MemoryDict
    reference: MemoryDict


class TwoTotalsDict(TypedDict):
    """The sums over all collectives of both programs."""

    old: TotalsDict
    new: TotalsDict


class UncomparedProgramDict(TypedDict):
    """A program in a profile that has no prediction to compare with."""

    program: str
    runs: int
    measured_us: float
    why: str


class UnknownOperationDict(TypedDict):
    """Operations on the critical path whose time is unknown."""

    what: str
    count: int
    bytes: int
    time_us: float


class UnmodelledDict(TypedDict):
    """A part of the text that was not understood, so that totals may be incomplete."""

    what: str
    effect: str
    computation: str | None
    instruction: str | None
    line: int | None


class UnpricedSliceDict(TypedDict):
    """A slice that the program could not be compiled for."""

    slice: str
    error: str


class UntestedDict(TypedDict):
    """A part of an argument that no output depends on for the tested inputs, or whose change no output shows."""

    argument: str
    shards: list[str]
    parts: int
    tried: bool
    changed: str


class VerificationDict(TypedDict):
    """A program compared with its reference."""

    schema: Literal[2]
    target: str
    reference: str
    slice: SliceFactDict | None
    passed: bool
    untested: list[str]
    numerics: NumericsDict
    communication: CommunicationDict
    memory: TwoMemoriesDict
    findings: list[FindingDict]
    versions: dict[str, str]


class WaitsDict(TypedDict):
    """Waiting time of a core in one step, in microseconds, by what it waits for."""

    collective_us: float
    hbm_us: float
    host_us: float
    kernel_us: float
    limit_us: float


class WorstDict(TypedDict):
    """The element that differs most relative to its tolerance."""

    index: list[int]
    shard: str
    local_index: list[int]
    found: str
    expected: str
    allowed: float | Literal["inf"]
