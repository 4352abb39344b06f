"""XLA's words: opcodes, words that cannot be an instruction's name, and keys of attributes."""

from __future__ import annotations

from functools import cache

_TEXT = """
    abs acos acosh add add-dependency after-all all-gather all-gather-done all-gather-start all-reduce
    all-reduce-done all-reduce-start all-to-all and asin asinh async-done async-start async-update atan2 atanh
    batch-norm-grad batch-norm-inference batch-norm-training bitcast bitcast-convert broadcast call cbrt ceil
    cholesky clamp collective-broadcast collective-permute collective-permute-done collective-permute-start compare
    complex concatenate conditional constant convert convolution copy copy-done copy-start cosine cosh
    count-leading-zeros custom-call divide domain dot dynamic-reshape dynamic-slice dynamic-update-slice erf
    exponential exponential-minus-one fft floor fusion gather get-dimension-size get-tuple-element imag infeed iota
    is-finite log log-plus-one logistic map maximum minimum mulhi multiply negate not opt-barrier or outfeed pad
    parameter partition-id popcnt power ragged-all-to-all ragged-dot real recv recv-done reduce reduce-precision
    reduce-scatter reduce-window remainder replica-id reshape reverse rng rng-bit-generator rng-get-and-update-state
    round-nearest-afz round-nearest-even rsqrt scaled-dot scan scatter select select-and-scatter send send-done
    set-dimension-size shift-left shift-right-arithmetic shift-right-logical sign sine sinh slice sort sqrt
    stochastic-convert subtract tan tanh topk transpose triangular-solve tuple while xor
    """
OPCODES = frozenset(_TEXT.split())
"""Source: xla/hlo/ir/hlo_opcode.h."""

_ONE_OPERAND = """
    abs acos acosh all-gather all-reduce all-to-all asin asinh atanh bitcast bitcast-convert broadcast cbrt ceil
    cholesky collective-broadcast collective-permute concatenate convert copy copy-done copy-start cosine cosh
    count-leading-zeros domain erf exponential exponential-minus-one fft floor get-dimension-size get-tuple-element imag
    is-finite log log-plus-one logistic negate not opt-barrier popcnt real reduce-precision reduce-scatter reshape
    reverse round-nearest-afz round-nearest-even rsqrt sign sine sinh slice sort sqrt tan tanh topk transpose while
    """
_TWO_OPERANDS = """
    add add-dependency and atan2 compare complex conditional convolution divide dot dynamic-slice gather maximum minimum
    mulhi multiply or pad power ragged-dot reduce reduce-window remainder set-dimension-size shift-left
    shift-right-arithmetic shift-right-logical stochastic-convert subtract triangular-solve xor
    """
_THREE_OPERANDS = "batch-norm-training clamp dynamic-update-slice scatter select select-and-scatter"
_NEEDED = {
    opcode: count
    for count, text in enumerate((_ONE_OPERAND, _TWO_OPERANDS, _THREE_OPERANDS), start=1)
    for opcode in text.split()
}

_ASYNC_ENDINGS = ("-start", "-update", "-done")


@cache
def is_known_opcode(opcode: str) -> bool:
    """True if XLA has the opcode, plain or in the short form of an asynchronous one, such as `all-to-all-start`."""
    if opcode in OPCODES:
        return True
    return any(opcode.endswith(ending) and opcode.removesuffix(ending) in OPCODES for ending in _ASYNC_ENDINGS)


def count_needed_operands(opcode: str) -> int:
    """The minimum number of operands of an opcode, if known."""
    return _NEEDED.get(opcode, 0)


RESERVED = frozenset(
    """
    true false inf nan HloModule ENTRY ROOT FileNames FunctionNames FileLocations StackFrames maximal replicated manual
    unreduced unknown last_tile_dim_replicate shard_as shard_like
    pred s1 s2 s4 s8 s16 s32 s64 u1 u2 u4 u8 u16 u32 u64 f16 bf16 f32 f64 c64 c128 f8e5m2 f8e4m3 f8e4m3fn f8e4m3b11fnuz
    f8e3m4 f8e5m2fnuz f8e4m3fnuz f8e8m0fnu f4e2m1fn f6e3m2fn f6e2m3fn opaque token
    """.split()
)
"""Keywords and types, which XLA's lexer recognizes as such. With `%` they are names: XLA asks to rename a few of those
too, but texts of older versions have them.

Source: xla/hlo/parser/hlo_lexer.cc.
"""

_NUMBERS = (
    "index k iota_dimension index_vector_dim feature_group_count batch_group_count exponent_bits mantissa_bits "
    "feature_index num_carries delta cross_program_prefetch_index inferred_dimension num_partitions replica_count"
)
_BOOLEANS = (
    "is_stable largest use_global_device_ids constrain_layout is_host_transfer indices_are_sorted unique_indices "
    "custom_call_has_side_effect is_reverse is_associative left_side lower unit_diagonal is_composite "
    "has_dynamic_root is_scheduled alias_passthrough_params"
)
_LISTS = (
    "dimensions dynamic_slice_sizes fft_length offset_dims collapsed_slice_dims start_index_map operand_batching_dims "
    "start_indices_batching_dims update_window_dims inserted_window_dims scatter_dims_to_operand_dims "
    "input_batching_dims scatter_indices_batching_dims lhs_contracting_dims rhs_contracting_dims lhs_batch_dims "
    "rhs_batch_dims lhs_ragged_dims rhs_group_dims"
)

_STRINGS = "custom_call_target infeed_config outfeed_config async_execution_thread"

RULE_OF_VALUE = {
    **dict.fromkeys(_NUMBERS.split(), "number"),
    **dict.fromkeys(_BOOLEANS.split(), "boolean"),
    **dict.fromkeys(_LISTS.split(), "integers"),
    **dict.fromkeys(_STRINGS.split(), "quoted"),
    "source_target_pairs": "integer_lists",
    "slice": "ranges",
    "window": "window",
    "padding": "padding",
    "dim_labels": "dim_labels",
    "result_accuracy": "result_accuracy",
    "input_output_alias": "aliasing",
    "output_to_operand_aliasing": "aliasing",
    "buffer_donor": "donors",
}
"""The grammar's rule for the values of an attribute, by its key.

Source: `hlo_parser.cc` of XLA, the attributes of each opcode and of the module.
"""
