"""How fast Hugging Face models are on regard. `python -m benchmarks.huggingface_speed --device cuda --out FILE`

Prefill and training step (forward and backward) of models in the shape of Llama 1B, Mistral (every layer a sliding
window) and Gemma 3 (five of six layers), with `sdpa`, `flex_attention` and `regard` taking turns on the same weights.
Peers that would not finish in time are left out and named. On a CPU the models are tiny.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault(
    "TORCHINDUCTOR_COMPILE_THREADS", "1"
)  # no pool of compiling processes that outlives this one

import torch
import transformers

import regard
from regard.interop import huggingface

FAMILIES = ("llama", "mistral", "gemma3")
WORK = ("prefill", "training")
BARS = {("llama", "sdpa"): 1.0, ("mistral", "sdpa"): 1.3, ("gemma3", "sdpa"): 1.3}
COMPILING = 25.0  # seconds that FlexAttention may take to compile for one case


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="huggingface_speed", description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seconds", type=float, default=3.0, help="of measuring, for each case")
    parser.add_argument(
        "--total", type=float, default=85.0, help="seconds after which no further peer is started"
    )
    parser.add_argument("--length", type=int, help="tokens (default: 8192 on a GPU, 96 on a CPU)")
    parser.add_argument("--window", type=int, help="of sliding layers (default: 1024 on a GPU, 17 on a CPU)")
    parser.add_argument("--only", default="", help="families and kinds of work, joined by commas")
    parser.add_argument(
        "--peers", help="implementations, joined by commas (default: sdpa; on a GPU flex_attention too)"
    )
    parser.add_argument("--out", type=Path, help="all rows as JSON")
    given = parser.parse_args(arguments)
    huggingface.register()
    transformers.logging.set_verbosity_error()
    ends, rows = time.perf_counter() + given.total, []
    on_gpu = given.device.startswith("cuda")
    peers = given.peers or ("sdpa,flex_attention" if on_gpu else "sdpa")
    chosen = [word for word in given.only.split(",") if word]
    for family in FAMILIES:
        if chosen and not set(chosen) & {family} and set(chosen) & set(FAMILIES):
            continue
        model, text = _model(family, given, on_gpu), None
        text = torch.randint(5, model.config.vocab_size, (1, given.length or (8192 if on_gpu else 96)))
        for work in WORK:
            if not (set(chosen) & set(WORK)) or work in chosen:
                rows += _measured(family, work, model, text.to(given.device), peers.split(","), given, ends)
                _tell(rows, given.out)
        del model
    return 0


def _model(family: str, given: argparse.Namespace, on_gpu: bool) -> Any:
    """A model of random weights, in the shape of Llama 1B on a GPU."""
    window = given.window or (1024 if on_gpu else 17)
    sizes: dict[str, Any] = {
        "vocab_size": 32000, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "max_position_embeddings": 1 << 17,
    }  # fmt: skip
    if not on_gpu:
        sizes |= {"vocab_size": 211, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
        sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
    if family == "llama":
        config: Any = transformers.LlamaConfig(**sizes)
    elif family == "mistral":
        config = transformers.MistralConfig(**sizes, sliding_window=window)
    else:
        kinds = [
            "full_attention" if at % 6 == 5 else "sliding_attention"
            for at in range(sizes["num_hidden_layers"])
        ]
        config = transformers.Gemma3TextConfig(**sizes, sliding_window=window, layer_types=kinds)
    config.pad_token_id = None
    dtype = torch.bfloat16 if on_gpu else torch.float32
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(given.device):
            return transformers.AutoModelForCausalLM.from_config(config)
    finally:
        torch.set_default_dtype(before)


def _measured(
    family: str, work: str, model: Any, text: Any, peers: list[str], given: argparse.Namespace, ends: float
) -> list[dict[str, Any]]:
    """One row for each peer: seconds of both, and the median of the ratios of neighbouring rounds."""
    run: Callable[[], None] = _prefill(model, text) if work == "prefill" else _training(model, text)
    timed, left_out = ["regard"], {}
    for name in ("regard", *peers):
        if name == "flex_attention" and time.perf_counter() + COMPILING + given.seconds > ends:
            left_out[name] = "no time left to compile"
            continue
        try:
            model.set_attn_implementation(name)
            for _ in range(3):
                run()
        except Exception as error:
            if name == "regard":
                raise
            left_out[name] = f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
            continue
        timed = timed if name == "regard" else [*timed, name]
    seconds: dict[str, list[float]] = {name: [] for name in timed}
    stop = min(time.perf_counter() + given.seconds, max(ends, time.perf_counter() + 0.5))
    while time.perf_counter() < stop or len(seconds["regard"]) < 3:
        for name in timed:
            model.set_attn_implementation(name)
            _wait(given.device)
            begun = time.perf_counter()
            run()
            _wait(given.device)
            seconds[name].append(time.perf_counter() - begun)
    rows = []
    for peer in peers:
        row: dict[str, Any] = {
            "name": f"{family} {work}", "peer": peer, "tokens": text.shape[1], "device": _device(given.device),
            "window": getattr(model.config, "sliding_window", None), "torch": torch.__version__,
            "transformers": transformers.__version__, "regard": regard.__version__,
        }  # fmt: skip
        if peer in left_out:
            rows.append(row | {"left_out": left_out[peer]})
            continue
        ratios = [theirs / ours for ours, theirs in zip(seconds["regard"], seconds[peer], strict=True)]
        bar = BARS.get((family, peer), 1.0)
        found = statistics.median(ratios)
        rows.append(
            row
            | {
                "ours_seconds": statistics.median(seconds["regard"]),
                "peer_seconds": statistics.median(seconds[peer]),
                "measured": found,
                "low": min(ratios),
                "high": max(ratios),
                "samples": len(ratios),
                "bar": bar,
                "met": found >= bar,
            }
        )
    return rows


def _prefill(model: Any, text: Any) -> Callable[[], None]:
    def run() -> None:
        model.eval()
        with torch.no_grad():
            model(text, logits_to_keep=1, use_cache=True)

    return run


def _training(model: Any, text: Any) -> Callable[[], None]:
    def run() -> None:
        model.train()
        model.zero_grad(set_to_none=True)
        model(text, labels=text, use_cache=False).loss.backward()

    return run


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def _device(device: str) -> str:
    return torch.cuda.get_device_name() if device.startswith("cuda") else device


def _tell(rows: list[dict[str, Any]], out: Path | None) -> None:
    """Print the last rows, and save all: a run that is stopped has what it measured."""
    last = [row for row in rows if row["name"] == rows[-1]["name"]]
    for row in last:
        if "left_out" in row:
            print(f"{row['name']:18} {row['peer']:15} left out: {row['left_out']}", flush=True)
            continue
        times = f"{row['ours_seconds'] * 1e3:9.2f} ms, peer {row['peer_seconds'] * 1e3:9.2f} ms"
        met = "" if row["met"] else f"  MISSED (bar {row['bar']})"
        print(
            f"{row['name']:18} {row['peer']:15} {times}  {row['measured']:.2f}× ({row['samples']}){met}",
            flush=True,
        )
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    sys.exit(main())
