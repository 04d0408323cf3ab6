"""`regard export`: the model of a run as a file that other programs run, or as a folder in the Hub's form."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from regard_workbench.cli.common.loading import add_checkpoint, add_run
from regard_workbench.cli.common.terminal import printable, tell

if TYPE_CHECKING:
    from jsonargparse import Namespace

    from regard_workbench.cli.common.parser import Parser

SUMMARY = "Write a trained model for other programs (ONNX, torch.export; the Hub's form with a card), and check it."
EXAMPLES = (
    "regard export runs/dates-1 --to onnx",
    "regard export runs/digits-1 --to torch --out digits.pt2 --checkpoint last --json",
    "regard export runs/dates-1 --to hub --out dates-model",
)

FAILED = 1


def add_arguments(parser: Parser) -> None:
    """Declare the options."""
    add_run(parser)
    form = (
        "onnx: any runtime for ONNX; torch: a program of torch.export, which needs torch but not regard; hub: a folder "
        "as the Hugging Face Hub has them, with the metrics of the test split on its card"
    )
    parser.add_argument("--to", choices=["onnx", "torch", "hub"], default="onnx", help=form)
    out = (
        "the file to write (default: model.onnx or model.pt2 in the run's folder); FILE.json beside it describes it. "
        "For hub, the folder (default: hub in the run's folder)"
    )
    parser.add_argument("--out", type=str, metavar="FILE", help=out)
    add_checkpoint(parser)
    data = "examples to trace and check with, instead of the run's own files"
    parser.add_argument("--data", type=str, metavar="PATH", help=data)
    parser.add_argument("--json", action="store_true", help="what was written, as JSON on stdout")


def run(options: Namespace) -> int:
    """Export. 0; 2 for a wrong call or a model that cannot be expressed; 1 if the file answers otherwise."""
    from regard_workbench.training.exporting.export import ExportDiffers, export_run

    try:
        if options.to == "hub":
            return _for_the_hub(options)
        exported = export_run(
            options.run, options.to, options.out, checkpoint=options.checkpoint, data=options.data, tell=tell
        )
    except ExportDiffers as trouble:
        tell(f"regard export: {trouble}")
        return FAILED
    if options.json:
        print(json.dumps(exported.to_dict(), ensure_ascii=False))
        return 0
    print(printable(f"file: {exported.path}"))
    print(printable(f"description: {exported.description}"))
    for name, facts in exported.inputs.items():
        print(printable(f"input {name}: {facts['dtype']} {_shape(facts['shape'])}"))
    for name, shape in exported.outputs.items():
        print(printable(f"output {name}: {_shape(shape)}"))
    if exported.operators is not None:
        print(f"operators: {exported.operators} kinds, all of ONNX's own set")
    sizes = ", ".join(_shape(shape) for shape in exported.batches)
    print(f"checked: batches {sizes}: differs by at most {exported.largest_difference:.1g} of the largest output")
    return 0


def _for_the_hub(options: Namespace) -> int:
    """Write the folder, and say what it holds and how to upload it."""
    from regard_workbench.comparison.publishing import save_run

    tell("measuring the test split for the model card")
    folder = save_run(options.run, options.out, checkpoint=options.checkpoint, data=options.data)
    files = sorted(path.name for path in folder.iterdir() if path.is_file())
    if options.json:
        print(json.dumps({"path": str(folder), "files": files}, ensure_ascii=False))
        return 0
    print(printable(f"folder: {folder}"))
    print(printable(f"files: {', '.join(files)}"))
    print(printable(f"upload: hf upload USER/NAME {shlex.quote(str(folder))}"))
    return 0


def _shape(shape: Sequence[int | str]) -> str:
    return "(" + ", ".join(str(size) for size in shape) + ")"
