"""Programs with the decision that was lost in each, as a person sees it, and the twin that a person wrote.

The expectations were written before hloscope read any of the programs. Where an expectation turned out to be wrong,
`known_wrong` says why, and it stays as it was.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from hloscope.compile.target import FACTS_ATTRIBUTE
from hloscope.model import Analysis
from hloscope.model.decision import Decision
from hloscope.model.reason import Dimension

PROGRAMS = Path(__file__).parent / "programs"


@dataclass(frozen=True, slots=True)
class Lost:
    """A decision that a person would turn.

    Attributes:
        axis: The mesh axis.
        winner: The letters of the dimension that has it, any of them if there are several; `-` among them for none.
        loser: Those of the dimension that should; `-` among them for one that nothing claims the axis for.
    """

    axis: str
    winner: str
    loser: str

    def __str__(self) -> str:
        return f"{self.axis}: {self.winner} > {self.loser}"

    def matches(self, decision: Decision, dims: dict[str, int]) -> bool:
        """Returns whether a decision is this one."""
        return (
            decision.axis == self.axis
            and _is_one_of(decision.winner, self.winner, dims)
            and (_is_one_of(decision.loser, self.loser, dims) or ("-" in self.loser and not decision.lost_by))
        )


def _is_one_of(dimension: Dimension | None, letters: str, dims: dict[str, int]) -> bool:
    if dimension is None:
        return "-" in letters
    name = dimension.name.partition("'")[0]
    return name in letters or (name.isdigit() and int(name) in [dims.get(letter) for letter in letters])


@dataclass(frozen=True, slots=True)
class Row:
    """A program of the table.

    Attributes:
        name: The program: `language:tied` is `tied` in `programs/language.py`.
        kind: The kind of mistake, or of program if it is right.
        lost: The decision that is lost in it; None if it is right as it is.
        notes: Anything a reader should know.
        known_wrong: Why the expectation was wrong, if it was.
    """

    name: str
    kind: str
    lost: Lost | None = None
    notes: str = ""
    known_wrong: str = ""

    @property
    def target(self) -> str:
        """The program, as hloscope takes it."""
        file, _, name = self.name.partition(":")
        return f"{PROGRAMS / file}.py:{name}"

    @property
    def cured(self) -> str | None:
        """The twin that a person wrote; None for a program that is right."""
        return None if self.lost is None else f"{self.target}_cured"


def read_dims(row: Row) -> dict[str, int]:
    """The sizes of a program's letters."""
    file, _, name = row.name.partition(":")
    spec = spec_from_file_location(file, PROGRAMS / f"{file}.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return dict(getattr(getattr(module, name), FACTS_ATTRIBUTE).dims)


def compute_unexplained(found: Analysis) -> float:
    """The share of a program's bytes that no decision explains."""
    total = sum(each.wire_bytes_per_step or 0 for each in found.collectives)
    explained = sum(each.wire_bytes or 0 for each in found.decisions)
    return (total - explained) / total if total else 0.0


def name_role(decision: Decision) -> str:
    """The roles of a decision's dimensions: `features > batch`."""
    return " > ".join(_name_role(each) for each in (decision.winner, decision.loser))


def _name_role(dimension: Dimension | None) -> str:
    return "-" if dimension is None else str(dimension.role or "?")


BATCH_TO_FEATURES = Lost("data", "D", "B")
"""The batch lost its axis to the features."""
FEW_TOKENS = (
    "where the weights of the patches are larger than the images, there are fewer tokens than features, and the twin "
    "is slower: features are right there"
)

TABLE = (
    Row("language:tied", "batch lost by an embedding lookup: tied, scan, remat", BATCH_TO_FEATURES),
    Row("language:untied", "batch lost by an embedding lookup: untied, scan", BATCH_TO_FEATURES),
    Row("language:positional", "batch lost by an embedding lookup: scaled, with positions", BATCH_TO_FEATURES),
    Row("language:written_out", "batch lost by an embedding lookup: layers written out", BATCH_TO_FEATURES),
    Row("language:fsdp", "batch lost by an embedding lookup: FSDP alone", BATCH_TO_FEATURES),
    Row("language:one_hot", "batch lost by a product with one-hot rows", BATCH_TO_FEATURES),
    Row(
        "language:accumulated",
        "batch lost: reshaped (n, b) and scanned over n",
        BATCH_TO_FEATURES,
        notes="the axis lies on n, so the cure needs two constraints: on the tokens, and on the lookup",
    ),
    Row("language:accumulated_strided", "batch lost: reshaped (b, n) and scanned over n", BATCH_TO_FEATURES),
    Row("language:two_slices", "batch lost by an embedding lookup: two slices with DCN", BATCH_TO_FEATURES),
    Row(
        "language:encoder_decoder",
        "batch lost by two embedding lookups: encoder and decoder",
        BATCH_TO_FEATURES,
        notes="the cure needs two constraints",
    ),
    Row("language:features_by_constraint", "a wrong constraint of the user's: features over data", BATCH_TO_FEATURES),
    Row(
        "language:whole_by_constraint",
        "a wrong constraint of the user's: hidden features made whole",
        Lost("model", "-", "F"),
    ),
    Row("language:explicit", "batch lost by an explicit out_sharding", BATCH_TO_FEATURES),
    Row("language:fsdp_constrained", "right: FSDP and TP with constraints"),
    Row("language:megatron", "right: TP, vocabulary over model"),
    Row(
        "language:sequence_parallel",
        "right: TP with sequence parallelism",
        known_wrong="its logits are gathered by the sequence: with the vocabulary over model there, 7.50 ms -> 6.50 ms",
    ),
    Row("language:data_parallel", "right: DP"),
    Row(
        "language:rows_of_the_table",
        "right: FSDP with the rows of the table over data",
        known_wrong="its batch is lost at the loop of layers: one constraint behind the lookup, 21.0 ms -> 7.90 ms",
    ),
    Row(
        "language:table_of_rows",
        "batch lost at a loop of layers: FSDP with the rows of the table over data",
        BATCH_TO_FEATURES,
        notes="as rows_of_the_table; written when hloscope had shown that it is not right",
    ),
    Row(
        "networks:patches",
        "batch lost by patches of images (reshape)",
        BATCH_TO_FEATURES,
        notes="one image for each device, so that the weights of the patches are larger than the images",
        known_wrong=FEW_TOKENS,
    ),
    Row(
        "networks:convolved",
        "batch lost by patches of images (convolution)",
        BATCH_TO_FEATURES,
        known_wrong=FEW_TOKENS,
    ),
    Row("networks:experts", "batch lost by an embedding lookup: experts with dense dispatch", BATCH_TO_FEATURES),
    Row(
        "networks:recurrent",
        "batch lost by an embedding lookup: recurrence over time",
        BATCH_TO_FEATURES,
        known_wrong="the recurrent weights are larger than a state: the twin, which gathers them each time, is slower",
    ),
    Row("networks:module", "batch lost by an embedding lookup: Flax NNX", BATCH_TO_FEATURES),
    Row(
        "networks:microbatches",
        "batch lost: reshaped (n, b), the axis on n and scanned over n",
        Lost("data", "-", "B"),
        notes="n is 2 and the axis 4: it is split over n and b; any name of the merged batch will do",
    ),
    Row(
        "networks:summed_in_loop",
        "gradients summed over devices in each iteration",
        Lost("data", "B", "-"),
        notes="the cure is a change of code: a sum after the loop under shard_map",
        known_wrong="the compiler moves the sum out of the loop by itself: the twin is no faster",
    ),
    Row("lookups:wide_recurrent", "batch lost by an embedding lookup: recurrence with large states", BATCH_TO_FEATURES),
    Row("lookups:image_codes", "batch lost by a lookup: vision transformer of image codes", BATCH_TO_FEATURES),
    Row("lookups:segments", "batch lost by two lookups that are added", BATCH_TO_FEATURES),
    Row(
        "lookups:two_towers",
        "batch lost by an embedding lookup: the text tower of two",
        BATCH_TO_FEATURES,
        notes="the twin had a constraint on the text alone, 67.3 ms; the images lose their batch too, so it has two",
    ),
    Row(
        "networks:large_images",
        "right: FSDP of a vision transformer, whose images are larger than a weight",
        known_wrong="its batch is lost at the loop of layers: one constraint behind the patches, 27.0 ms -> 7.96 ms",
    ),
    Row(
        "networks:many_images",
        "batch lost at a loop of layers: patches of images (reshape)",
        BATCH_TO_FEATURES,
        notes="as large_images; written when hloscope had shown that it is not right",
    ),
    Row("networks:convolutional", "right: DP of convolutions"),
    Row("networks:larger_activations", "right: FSDP, whose batch wins without a constraint"),
    Row("networks:expert_parallel", "right: expert parallelism under shard_map"),
    Row("networks:pipeline", "right: pipeline under shard_map with ppermute"),
    Row("networks:zero_carry", "right: a carry that begins as zeros without a sharding"),
    Row(
        "serving:decode",
        "features lost to the batch: decoding with FSDP weights",
        Lost("data", "B", "D"),
        notes="each weight is gathered where a few rows of activations could move",
    ),
    Row("serving:decode_cached", "features lost to the batch: decoding with a cache", Lost("data", "B", "D")),
    Row(
        "serving:repeated_heads",
        "a wrong constraint of the user's: fewer KV heads than devices, repeated",
        Lost("model", "H", "T"),
        notes="the cache moves where the queries of one token could",
    ),
    Row(
        "serving:six_heads",
        "heads that the axis does not divide: scores are partial sums",
        Lost("model", "K", "-"),
        notes="the sequence of the queries could have the axis; nobody claims it",
    ),
    Row(
        "serving:top_k",
        "top_k over a sharded vocabulary",
        Lost("model", "-", "V"),
        known_wrong="the compiler does what the twin does: only candidates are gathered, and the twin is slower",
    ),
    Row(
        "serving:sorted_vocabulary",
        "sort over a sharded vocabulary",
        Lost("model", "-", "V"),
        known_wrong="the twin gives the axis to the batch, so that V > B, as hloscope says, is the lost decision",
    ),
    Row("serving:merged", "reshape that merges batch and sharded sequence", Lost("data", "-", "S")),
    Row(
        "serving:idle",
        "an axis that nobody uses",
        Lost("model", "-", "B"),
        notes="no collective follows, only repeated work",
    ),
    Row("serving:decode_tensor_parallel", "right: decoding with TP"),
    Row("serving:contracted", "right: a product summed over an axis"),
    Row("serving:context_parallel", "right: attention over a sharded sequence"),
    Row("states:weights_replicated", "a requested output that replicates", Lost("data", "-", "D")),
    Row("states:state_replicated", "a state left replicated", Lost("data", "-B", "D")),
    Row(
        "states:state_transposed",
        "a state that comes back sharded along another dimension",
        Lost("data", "F", "D"),
        notes="7% of the bytes: below the share from which hloscope calls a decision lost, but 16% of the step",
    ),
    Row("states:output_open", "an output left open that replicates", Lost("data", "-B", "D")),
    Row("states:zero_one", "right: ZeRO-1"),
)
