"""How fast Hugging Face models are on regard. `python -m bench.huggingface_speed --device cuda --out FILE`

Prefill and training step (forward and backward) of models in the shape of Llama 1B, Mistral (every layer a sliding
window) and Gemma 3 (five of six layers). `regard` and a peer take turns on the same weights: first all cases against
`sdpa`, then against `flex_attention`, which takes long to compile; cases for which no time is left are named. Each row
also says how far the results of both are apart, and how often something was compiled while it was measured (0, or the
times mean little). What fails is named, the rest continues, and the exit status is 1. On a CPU the models are tiny.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # no pool of compiling processes that outlives this one

import torch
import transformers
from torch import Tensor

import regard
from regard.interop import huggingface

FAMILIES = ("mistral", "gemma3", "llama")  # sliding windows first: they have a bar against FlexAttention
WORK = ("prefill", "training")
BARS = {("mistral", "sdpa"): 1.3, ("gemma3", "sdpa"): 1.3}  # else 1
COMPILING = 20.0  # seconds that FlexAttention may take to compile for one case


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="huggingface_speed", description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seconds", type=float, default=1.5, help="of measuring, for each case")
    parser.add_argument(
        "--total", type=float, default=80.0, help="seconds of this process after which FlexAttention is left out"
    )
    parser.add_argument("--length", type=int, help="tokens (default: 8192 on a GPU, 96 on a CPU)")
    parser.add_argument("--window", type=int, help="of sliding layers (default: 1024 on a GPU, 17 on a CPU)")
    parser.add_argument("--only", default="", help="families and kinds of work, joined by commas")
    parser.add_argument(
        "--peers", help="implementations, joined by commas (default: sdpa; on a GPU flex_attention too)"
    )
    parser.add_argument("--out", type=Path, help="all rows as JSON")
    given = parser.parse_args(arguments)
    ends = time.perf_counter() + given.total
    huggingface.register()
    transformers.logging.set_verbosity_error()
    # Every case compiles FlexAttention anew; beyond the limit dynamo would run it uncompiled, without a word.
    torch._dynamo.config.recompile_limit = 64
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    on_gpu = given.device.startswith("cuda")
    chosen = set(given.only.split(",")) - {""}
    families = [name for name in FAMILIES if name in chosen or not chosen & set(FAMILIES)]
    rows: list[dict[str, Any]] = []
    for peer in (given.peers or ("sdpa,flex_attention" if on_gpu else "sdpa")).split(","):
        for family in families:
            model = _model(family, given, on_gpu)
            text = torch.randint(5, model.config.vocab_size, (1, given.length or (8192 if on_gpu else 96)))
            for work in WORK:
                if work in chosen or not chosen & set(WORK):
                    rows.append(_measured(family, work, model, text.to(given.device), peer, given, ends))
                    _tell(rows, given.out)
            del model
            _forget(on_gpu)
    return int(any("failed" in row for row in rows))


def _forget(on_gpu: bool) -> None:
    """Give back the memory of a model, and of a pass that ran out of it."""
    gc.collect()
    if on_gpu:
        torch.cuda.empty_cache()


def _model(family: str, given: argparse.Namespace, on_gpu: bool) -> Any:
    """A model of random weights, in the shape of Llama 1B on a GPU."""
    window = given.window or (1024 if on_gpu else 17)
    sizes: dict[str, Any] = {
        "vocab_size": 32000,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "max_position_embeddings": 1 << 17,
    }
    if not on_gpu:
        sizes |= {"vocab_size": 211, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
        sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
    if family == "llama":
        config: Any = transformers.LlamaConfig(**sizes)
    elif family == "mistral":
        config = transformers.MistralConfig(**sizes, sliding_window=window)
    else:
        kinds = ["full_attention" if at % 6 == 5 else "sliding_attention" for at in range(sizes["num_hidden_layers"])]
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
    family: str, work: str, model: Any, text: Tensor, peer: str, given: argparse.Namespace, ends: float
) -> dict[str, Any]:
    """Seconds of regard and of a peer, and the median of the ratios of neighbouring rounds."""
    row: dict[str, Any] = {
        "name": f"{family} {work}",
        "peer": peer,
        "tokens": text.shape[1],
        "device": _device(given.device),
        "window": getattr(model.config, "sliding_window", None),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "regard": regard.__version__,
    }
    if peer == "flex_attention" and time.perf_counter() + COMPILING + given.seconds > ends:
        return row | {"left_out": "no time left to compile"}
    run = _prefill(model, text) if work == "prefill" else _training(model, text)
    name = "regard"
    seconds: dict[str, list[float]] = {"regard": [], peer: []}
    results: list[Tensor] = []
    try:
        for name in seconds:
            model.set_attn_implementation(name)
            results.append([run() for _ in range(3)][-1].float())
        graphs = _compiled_graphs()
        stop = time.perf_counter() + given.seconds
        while time.perf_counter() < stop or len(seconds[peer]) < 3:
            for name, times in seconds.items():
                model.set_attn_implementation(name)
                _wait(given.device)
                begun = time.perf_counter()
                run()
                _wait(given.device)
                times.append(time.perf_counter() - begun)
    except Exception as error:  # out of memory, or a library that cannot do this
        model.zero_grad(set_to_none=True)
        _forget(given.device.startswith("cuda"))
        return row | {"failed": f"{name}: {type(error).__name__}: {' '.join(str(error).split())[:160]}"}
    ratios = [theirs / ours for ours, theirs in zip(seconds["regard"], seconds[peer], strict=True)]
    bar, found = BARS.get((family, peer), 1.0), statistics.median(ratios)
    low, _, high = statistics.quantiles(ratios, n=4)
    return row | {
        "ours_seconds": statistics.median(seconds["regard"]),
        "peer_seconds": statistics.median(seconds[peer]),
        "measured": found,
        "low": low,
        "high": high,
        "samples": len(ratios),
        "apart": float((results[0] - results[1]).abs().max() / results[1].abs().max()),
        "compiled_meanwhile": _compiled_graphs() - graphs,
        "bar": bar,
        "met": found >= bar,
    }


def _compiled_graphs() -> int:
    """How many graphs torch.compile has made in this process."""
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


def _prefill(model: Any, text: Tensor) -> Callable[[], Tensor]:
    """A pass that fills the cache; it returns the last logits."""
    model.eval()

    def run() -> Tensor:
        with torch.no_grad():
            return model(text, logits_to_keep=1, use_cache=True).logits

    return run


def _training(model: Any, text: Tensor) -> Callable[[], Tensor]:
    """Forward and backward; it returns the gradient of the last layer's queries."""
    model.train()

    def run() -> Tensor:
        model.zero_grad(set_to_none=True)
        model(text, labels=text, use_cache=False).loss.backward()
        return model.model.layers[-1].self_attn.q_proj.weight.grad

    return run


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def _device(device: str) -> str:
    return torch.cuda.get_device_name() if device.startswith("cuda") else device


def _tell(rows: list[dict[str, Any]], out: Path | None) -> None:
    """Print the last row, and save all: a run that is stopped has what it measured."""
    row = rows[-1]
    if "left_out" in row:
        text = f"left out: {row['left_out']}"
    elif "failed" in row:
        text = f"FAILED: {row['failed']}"
    else:
        times = f"{row['ours_seconds'] * 1e3:9.2f} ms, peer {row['peer_seconds'] * 1e3:9.2f} ms"
        # Where both run the same kernel, the ratio is 1 but for noise: the quartiles tell a tie from a loss.
        spread = f"{row['measured']:.3f}× ({row['low']:.3f} to {row['high']:.3f}, {row['samples']} rounds)"
        tie = row["low"] <= row["bar"] <= row["high"]
        met = "" if row["met"] else f"  {'tie with the bar' if tie else 'MISSED: bar'} {row['bar']}"
        again = f", compiled {row['compiled_meanwhile']} times meanwhile" if row["compiled_meanwhile"] else ""
        text = f"{times}  {spread}, {row['apart']:.0e} apart{again}{met}"
    print(f"{row['name']:18} {row['peer']:15} {text}", flush=True)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    sys.exit(main())
