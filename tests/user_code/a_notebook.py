"""A page of user code that uses every public name; type checkers read it, and nothing runs it."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import hloscope
from hloscope import Analysis, Collective, Collectives, Finding, HloscopeError, Total
from hloscope.plain_types import AnalysisDict, CollectiveDict

ARGS = ("bf16[8@X,2048@Y]", "bf16[2048@Y,8192]")


@hloscope.target(mesh={"X": 4, "Y": 2}, slice="v5e:2x4", args=ARGS, out="P('X', None)", dims={"S": 4}, donate=0)
def step(x: float, w: float) -> float:
    return x * w


kept: float = step(1.0, 2.0)


def costliest(found: Analysis) -> tuple[Collective, str | None]:
    priced = [one for one in found.collectives if one.exposed_us is not None]
    first = max(priced, key=lambda one: (one.exposed_us or 0.0) * one.executions)
    return first, f"{first.source[0].file}:{first.source[0].line}" if first.source else first.why


def look_at(found: Analysis) -> list[str]:
    gathers: Collectives = found["all-gather@X"]
    alone: Collective = found.collectives[0]
    some: Collectives = found.collectives[:3]
    assert not found.collectives.where("all-gather", axis=("X", "Y"), source="moe.py:40", module="layers.*", link="ici")
    by_axis: dict[str, Collectives] = found.collectives.by("axis")
    total: Total = found.totals.by_axis["Y"]
    sent: int | None = gathers.wire_bytes_per_step
    waited: float | None = some.exposed_us_per_step
    problems: list[Finding] = [one for one in found.findings if one.severity == "error" and not one.allowed]
    lines: list[str] = [alone.kind.value, found.report(width=80, group_by="axis"), str(sent), str(waited)]
    return [*lines, *(one.message for one in problems), str(total.wire_bytes), *by_axis]


def as_data(found: Analysis) -> CollectiveDict | None:
    document: AnalysisDict = found.to_dict()
    again: Analysis = Analysis.from_dict(document)
    assert again == found
    memory: int | None = document["memory"]["peak_bytes"]
    print(document["totals"]["by_axis"]["Y"]["wire_bytes"], memory)
    return document["collectives"][0] if document["collectives"] else None


def every_use() -> None:
    found: Analysis = hloscope.analyze(step, ARGS, mesh="X=4,Y=2", select="exposed-collective", save_hlo=Path("a.hlo"))
    hloscope.analyze(partial(step, 1.0), timeout_s=60, allow=["all-gather@X: weights"], static={"shift": 5})
    text: Analysis = hloscope.analyze_text("HloModule m", mesh={"X": 8}, slice="v5e:2x4")
    modules: hloscope.DumpedModules = hloscope.analyze_all("dump/", jobs=2, memory="4GiB")
    names = [one.module.name for one in modules if one.analysis is None]
    explained: hloscope.Explanations = hloscope.explain(found, collective=1)
    tried = hloscope.explain(step, ARGS, collective=found.collectives[0], try_s="5m")[0].trials
    prices: hloscope.Prices = hloscope.price(step, ["v5e:2x4", "v6e:2x4"], ARGS, mesh={"X": 8})
    for each in prices:
        told = str(each.error) if isinstance(each, hloscope.Unpriced) else each.time and each.time.step_us
        print(told, names, tried)
    ways: hloscope.Suggestions = hloscope.suggest(step, ARGS, mesh={"X": 8}, budget_s="1m", keep=("W",), free="result")
    best: hloscope.Suggestion | None = ways.best
    specs: tuple[hloscope.SuggestedSpec, ...] = () if best is None else best.specs
    when: hloscope.Timeline = hloscope.timeline(step, ARGS, mesh={"X": 8})
    print(when.to_dict()["target"], hloscope.contracts)
    pictures: list[hloscope.Picture] = [found.mesh_picture(), found.array("W")]
    pictures[0].save(Path("mesh.svg"))
    near: hloscope.ProgramGraph = found.graph(around="all-gather.8", hops=2)
    hops = [edge.kind for edge in hloscope.graph(step, ARGS, computation="main").edges]
    print(near.to_dict()["nodes"][0]["opcode"], near.report("graphml"), pictures[1].svg, hops)
    print([spec.after for spec in specs], ways.to_dict()["front"])
    table: hloscope.ShardingTable = hloscope.shardings(step, ARGS)
    print(table.draw(width=60), table.array("W").text)
    checked: hloscope.CheckReport = hloscope.check(step, found, contract=("all-reduce@Y", "nothing else"))
    assert checked.passed, checked.report("markdown")
    whole: hloscope.CheckReport = hloscope.merge_reports("shard-1.json", Path("shard-2.json"), strict=True)
    assert whole.passed
    changed: hloscope.DiffDocument = hloscope.diff(found, text, equivalent=True)
    assert not changed.fails("increase", at_least_ok=True)
    verified: hloscope.Verification = hloscope.verify(step, step, ARGS, ranges={"x": (0, 8)}, scale={"S": 2})
    assert verified.passed
    recorded: hloscope.Recording = hloscope.record("train.py", "--steps", "3", only="train_*", run_below_bytes="64MB")
    print(recorded.programs[0].calls, table.to_dict()["arrays"][0]["name"], explained.to_dict()["explanations"])
    with hloscope.recording("v5e:2x4", top=3) as block:
        step(1.0, 2.0)
    result: hloscope.Recording | None = block.result
    written: tuple[hloscope.Accepted, ...] = hloscope.accept("step")
    print(hloscope.compare(step, ARGS, profile="trace"), hloscope.measure(step, ARGS, on="cpu").report(width=80))
    print(result, [one.state for one in written], hloscope.doctor().report(), hloscope.__version__)
    print(hloscope.rules.page("exposed-collective").summary, *hloscope.rules.pages(), hloscope.rules.failed_cases())


async def several(meshes: list[dict[str, int]]) -> list[Analysis]:
    return list(await asyncio.gather(*(hloscope.aio.analyze(step, ARGS, mesh=mesh) for mesh in meshes)))


def careful(target: Any) -> str:
    try:
        return str(hloscope.analyze(target))
    except hloscope.HbmError as error:
        return error.fix or error.what
    except (hloscope.MeshError, hloscope.SliceError, hloscope.TargetError) as error:
        return error.what
    except HloscopeError as error:
        return f"{error.what} {error.where} {error.why} {error.fix}"
