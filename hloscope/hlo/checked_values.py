"""The attributes whose values are checked when a text is read, though nothing reads most of them.

Every other value is kept as it is printed: versions of XLA differ in the words that they know, and an attribute that
nothing looks into need not be understood. What is checked here looks the same in all of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

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

_PAIRS_RULE = "integer_lists"

RULE_OF_VALUE = {
    **dict.fromkeys(_NUMBERS.split(), "number"),
    **dict.fromkeys(_BOOLEANS.split(), "boolean"),
    **dict.fromkeys(_LISTS.split(), "integers"),
    **dict.fromkeys(_STRINGS.split(), "quoted"),
    "source_target_pairs": _PAIRS_RULE,
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

_PLAIN_PAIRS = re.compile(r"\{(?:\{[0-9]{1,18},[0-9]{1,18}\}(?:,(?=\{)|(?=\})))*+\}")
_DIGITS = re.compile(r"[0-9]{1,18}")


def check_value(read: Callable[[str, str], Any], key: str, value: str) -> None:
    """Checks the value of an attribute, if its key is one of those above.

    Args:
        read: Reads a text by a start rule, and remembers what it has read: numbers are made equal, so that few values
            are new.
        key: The attribute's name.
        value: Its value as printed.

    Raises:
        ReadError: The value does not follow its rule.
    """
    rule = RULE_OF_VALUE.get(key)
    if rule is not None and not (rule == _PAIRS_RULE and plain_pairs(value)):
        read(rule, _DIGITS.sub("0", value))


def plain_pairs(value: str) -> bool:
    """Whether a value is `{{0,1},{1,2}}` as XLA prints it, for which the grammar need not be asked again and again."""
    return _PLAIN_PAIRS.fullmatch(value) is not None


class CheckedValues:
    """Callbacks of the rules that only say what is right: they make nothing."""

    def _nothing(self, _children: list[Any]) -> None:
        return None

    window = window_item = ranges = range = aliasing = alias = donors = donor = shape_index = _nothing
    result_accuracy = padding = dim_labels = number = boolean = quoted = _nothing
