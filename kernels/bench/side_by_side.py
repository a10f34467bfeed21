#!/usr/bin/env python3
"""Compares PyTorch and kvtwin's kernels on the same shapes and machine, in one table.

  kernels/bench/side_by_side.py --benches=build/dev/kernels [--step-bench=build/dev/tests/bench/cuda_step_bench]

Llama-3.1-8B, one layer. PyTorch: scaled_dot_product_attention with its flash and its cuDNN back end on contiguous
keys and values (kvtwin reads pages of 16 in random order), and torch.matmul (kvtwin: cuBLASLt within a step,
between events, which add 1 to 2 us). Times are medians of replays of a CUDA graph whose launches rotate over more
than 384 MB of inputs, so that L2 (60 MB) holds none; kvtwin's benches do the same. Without --benches the table has
PyTorch's columns only. Needs a GPU and PyTorch. A shape that a back end refuses is a dash in the table and is
listed below it.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

QUERY_HEADS, KV_HEADS, DIM = 32, 8, 128
READ_CEILING, FLOP_CEILING = 4.69e12, 790e12  # docs/design/kernels.md#ceilings, #gemm
L2_TIMES = 384e6
DECODE = [(1, 2048), (1, 8192), (1, 32768), (8, 2048), (8, 8192), (8, 32768), (32, 2048), (32, 8192),
          (32, 32768), (128, 2048), (128, 8192)]
PREFILL = [2048, 8192, 32768]
MATRICES = {"qkv": (4096, 6144), "attention_out": (4096, 4096), "gate_up": (4096, 28672), "down": (14336, 4096)}
# Steps of cuda_step_bench by their numbers of rows.
STEPS = {1: "8B_decode_1x8k", 8: "8B_decode_8x8k", 32: "8B_decode_32x8k", 2048: "8B_chunk_2048_of_2k"}
LAYERS = 32
refused = []


def replay(launch, launches, repeats=15):
    """Seconds of one launch(i), the median over replays of a graph of `launches` of them."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        launch(0)  # heuristics choose a kernel at first use
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        retained = [launch(i) for i in range(launches)]
    del retained
    seconds = []
    with torch.cuda.stream(stream):
        for _ in range(repeats + 2):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record(stream)
            graph.replay()
            end.record(stream)
            end.synchronize()
            seconds.append(begin.elapsed_time(end) / 1e3 / launches)
    return statistics.median(seconds[2:])


def random(*shape):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def attention(backend, name, batch, rows, tokens, causal):
    """Seconds, or None where the back end says no."""
    each = 4 * batch * KV_HEADS * tokens * DIM
    sets = max(1, min(48, int(-(-L2_TIMES // each))))
    try:
        q = random(batch, QUERY_HEADS, rows, DIM)
        pairs = [(random(batch, KV_HEADS, tokens, DIM), random(batch, KV_HEADS, tokens, DIM)) for _ in range(sets)]

        def launch(i):
            k, v = pairs[i % sets]
            return scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)

        with sdpa_kernel(backend):
            return replay(launch, max(sets, 8) if rows == 1 else 2)
    except RuntimeError as error:
        refused.append(f"{name} {batch} x {tokens}: {str(error).splitlines()[0][:120]}")
        return None
    finally:
        torch.cuda.empty_cache()


def matmul(rows, inner, outer):
    sets = max(1, min(48, int(-(-L2_TIMES // (2 * inner * outer)))))
    x = random(rows, inner)
    weights = [random(outer, inner) for _ in range(sets)]
    return replay(lambda i: torch.matmul(x, weights[i % sets].t()), max(sets, 8))


def bench(folder, name, pattern):
    """us by benchmark name, of one of kvtwin's Google Benchmarks."""
    if folder is None:
        return {}
    path = os.path.join(folder, name)
    out = subprocess.run([path, f"--benchmark_filter={pattern}", "--benchmark_format=json"], check=True,
                         capture_output=True, text=True).stdout
    return {one["name"]: one["us_median"] for one in json.loads(out)["benchmarks"] if "us_median" in one}


def step_products(path):
    """us of one product, by (matrix, rows), from cuda_step_bench."""
    if path is None:
        return {}
    pattern = "|".join(f"{name}/" for name in STEPS.values())
    out = subprocess.run([path, f"--benchmark_filter={pattern}", "--benchmark_format=json"], check=True,
                         capture_output=True, text=True).stdout
    found = {}
    for one in json.loads(out)["benchmarks"]:
        for rows, step in STEPS.items():
            if f"/{step}/" in one["name"]:
                found.update({(name, rows): one["us " + name.replace("_", " ")] / LAYERS for name in MATRICES})
    return found


def line(*cells, widths=(26, 10, 12, 12, 12, 14)):
    print("".join(str(c).ljust(w) if i == 0 else str(c).rjust(w) for i, (c, w) in enumerate(zip(cells, widths))))


def us(seconds):
    return "-" if seconds is None else f"{seconds * 1e6:.1f}"


def best_over(ours_us, *rivals):
    seen = [r * 1e6 for r in rivals if r is not None]
    return "-" if ours_us is None or not seen else f"{ours_us / min(seen):.3f}"


def attention_tables(folder):
    ours = bench(folder, "decode_bench", "decode/uniform/")
    print("decode attention, us")
    line("requests x tokens", "floor", "flash", "cuDNN", "kvtwin", "kvtwin/best")
    for batch, tokens in DECODE:
        flash = attention(SDPBackend.FLASH_ATTENTION, "flash", batch, 1, tokens, False)
        cudnn = attention(SDPBackend.CUDNN_ATTENTION, "cuDNN", batch, 1, tokens, False)
        mine = next((v for k, v in ours.items() if k.startswith(f"decode/uniform/{batch}/{tokens}/")), None)
        floor = 4 * DIM * KV_HEADS * batch * tokens / READ_CEILING
        line(f"{batch} x {tokens}", us(floor), us(flash), us(cudnn), "-" if mine is None else f"{mine:.1f}",
             best_over(mine, flash, cudnn))
    ours = bench(folder, "prefill_bench", "prefill/causal_(2k|8k|32k)/")
    print("causal prefill attention, us (and TFLOP/s)")
    line("tokens", "floor", "flash", "cuDNN", "kvtwin", "kvtwin/best")
    for tokens in PREFILL:
        flops = 2 * tokens * (tokens + 1) * DIM * QUERY_HEADS
        flash = attention(SDPBackend.FLASH_ATTENTION, "flash", 1, tokens, tokens, True)
        cudnn = attention(SDPBackend.CUDNN_ATTENTION, "cuDNN", 1, tokens, tokens, True)
        mine = next((v for k, v in ours.items() if k.startswith(f"prefill/causal_{tokens // 1024}k/")), None)

        def cell(seconds):
            return "-" if seconds is None else f"{seconds * 1e6:.0f} ({flops / seconds / 1e12:.0f})"

        line(tokens, us(flops / FLOP_CEILING), cell(flash), cell(cudnn), cell(None if mine is None else mine / 1e6),
             best_over(mine, flash, cudnn))


def matmul_table(step_bench):
    ours = step_products(step_bench)
    print("matrix products, us")
    line("rows, matrix", "floor", "torch", "", "kvtwin", "kvtwin/torch")
    for rows in STEPS:
        for name, (inner, outer) in MATRICES.items():
            floor = max(2 * inner * outer / READ_CEILING, 2 * rows * inner * outer / FLOP_CEILING)
            torch_s, mine = matmul(rows, inner, outer), ours.get((name, rows))
            line(f"{rows}, {name} {inner}x{outer}", us(floor), us(torch_s), "",
                 "-" if mine is None else f"{mine:.1f}", best_over(mine, torch_s))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--benches", help="folder with decode_bench and prefill_bench")
    parser.add_argument("--step-bench", help="cuda_step_bench")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("side_by_side: there is no GPU here; run it where PyTorch finds one")
    torch.manual_seed(1)
    print(f"# {torch.cuda.get_device_name()}, torch {torch.__version__}, CUDA {torch.version.cuda}, "
          f"cuDNN {torch.backends.cudnn.version()}")
    attention_tables(options.benches)
    matmul_table(options.step_bench)
    for one in refused:
        print("-", one)


if __name__ == "__main__":
    main()
