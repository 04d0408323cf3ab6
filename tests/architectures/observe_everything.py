"""How much of other libraries' attention is seen. `python -m tests.architectures.observe_everything`

Walks the registries of the installed transformers, timm and torch_geometric, builds each architecture with random
weights, runs it plainly, under a counter of attention that knows nothing of regard, and under `regard.observe`. The
table goes to docs/seeing.md, all details to a JSON file.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from tests.architectures.pool import examine_all
from tests.architectures.records import merged, recorded, save, versions
from tests.architectures.table import headline, rewrite
from tests.architectures.worker import library

ROOT = Path(__file__).resolve().parents[2]
LIBRARIES = ("transformers", "timm", "torch_geometric")


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    given = _parser().parse_args(arguments)
    records: list[dict[str, Any]] = []
    for name in given.library.split(","):
        try:
            names = library(name).names()
        except ImportError as error:
            print(f"{name}: left out ({error})", file=sys.stderr)
            continue
        if given.only:
            names = [one for one in names if one in given.only.split(",")]
        known = {one["name"]: one["status"] for one in recorded(given.out) if one["library"] == name}
        if given.left:
            names = [one for one in names if one not in known]
        if given.again:
            names = [one for one in names if known.get(one) in given.again.split(",")]
        names = names[: given.limit]
        ways = ["default", "eager"] if given.eager and name == "transformers" else ["default"]
        for way in ways:
            records += _examined(name, names, way, given)
    together = merged(given.out, records) if given.merge else records
    save(given.out, together)
    print(headline(together), file=sys.stderr)
    if given.json:
        print(json.dumps(records, indent=1))
    if given.write:
        rewrite(ROOT / "docs" / "seeing.md", together, versions(together))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="observe_everything", description=__doc__.splitlines()[0])
    parser.add_argument("--library", default=",".join(LIBRARIES), help="one or several, joined by commas")
    parser.add_argument("--only", help="names of architectures, joined by commas")
    parser.add_argument("--limit", type=int, help="so many architectures of each library")
    parser.add_argument(
        "--left", action="store_true", help="only what the file of --out does not have yet (with --merge)"
    )
    parser.add_argument("--again", help="only what has one of these statuses in the file of --out, joined by commas")
    parser.add_argument("--eager", action="store_true", help='transformers also with attn_implementation="eager"')
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--seconds", type=float, default=60.0, help="for each architecture")
    parser.add_argument("--gigabytes", type=float, default=2.0, help="for each process")
    parser.add_argument("--out", type=Path, default=ROOT / "outputs" / "observe_everything.json", help="all details")
    parser.add_argument("--merge", action="store_true", help="replace only what was examined in the file of --out")
    parser.add_argument("--json", action="store_true", help="print the records")
    parser.add_argument("--write", action="store_true", help="rewrite the table in docs/seeing.md")
    return parser


def _examined(name: str, names: list[str], way: str, given: argparse.Namespace) -> list[dict[str, Any]]:
    done, so_far = 0, list[dict[str, Any]]()

    def told(record: dict[str, Any]) -> None:
        nonlocal done
        done += 1
        if done % 20 == 0:  # a long sweep can be read, and continued with --merge, before it is over
            save(given.out, merged(given.out, [*so_far, record]))
        so_far.append(record)
        of = f"{record.get('seen', '-')}/{record.get('oracle', '-')}"
        text = f"[{done}/{len(names)}] {record['name']} ({way}): {record['status']} {of}"
        text += f" {record.get('seconds_in_all', '')} s"
        print(f"{text} {record.get('reason', '')[:160]}".rstrip(), file=sys.stderr, flush=True)

    return examine_all(name, names, way, given.jobs, given.seconds, given.gigabytes, told)


if __name__ == "__main__":
    sys.exit(main())
