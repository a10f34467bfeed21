#!/usr/bin/env python3
"""Measures all-reduce between the GPUs of one host, as tensor parallelism uses it (bf16, CUDA graph).

    torchrun --nproc-per-node=4 models/device/measure_all_reduce.py [--gpus 2,4] [--out FILE.csv]

Prints, for each number of GPUs and message size, the median time of one all-reduce inside a CUDA graph of
32 of them and launched one by one, and the least-squares fit (relative error) of

    time = fixed + 2 (n - 1) / n * bytes / rate

over messages of 8 KB to 64 MB: `all_reduce_fixed_ns` and nvlink_fraction * nvlink_bytes_per_s of models/device.
Needs PyTorch with NCCL.
"""
import argparse
import os
import statistics

import torch
import torch.distributed as dist

SIZES = [1 << i for i in range(13, 29)]  # bytes
PER_GRAPH = 32


def timed(run, repeats):
    times = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        run()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e6 / PER_GRAPH)  # ns of one
    return statistics.median(times)


def measure(group, size):
    data = torch.zeros(size // 2, dtype=torch.bfloat16, device="cuda")
    many = lambda: [dist.all_reduce(data, group=group) for _ in range(PER_GRAPH)]
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        many()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        many()
    repeats = 30 if size <= 1 << 24 else 10
    timed(graph.replay, 5)
    in_graph = timed(graph.replay, repeats)
    one_by_one = timed(many, repeats)
    return in_graph, one_by_one


def fit(gpus, rows):
    """Weighted least squares: y = a + b x with weights 1 / y^2."""
    points = [(2 * (gpus - 1) / gpus * size, ns) for size, ns in rows if size <= 1 << 26]
    sw = sx = sy = sxx = sxy = 0.0
    for x, y in points:
        w = 1 / (y * y)
        sw, sx, sy, sxx, sxy = sw + w, sx + w * x, sy + w * y, sxx + w * x * x, sxy + w * x * y
    b = (sw * sxy - sx * sy) / (sw * sxx - sx * sx)
    a = (sy - b * sx) / sw
    worst = max(abs(a + b * x - y) / y for x, y in points)
    return a, 1 / b, worst


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--gpus", default="2,4")
    parser.add_argument("--out")
    args = parser.parse_args()
    dist.init_process_group("nccl", device_id=torch.device("cuda", int(os.environ["LOCAL_RANK"])))
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    rank = dist.get_rank()
    lines = ["gpus,bytes,graph_ns,eager_ns"]
    for gpus in [int(n) for n in args.gpus.split(",")]:
        group = dist.new_group(list(range(gpus)))
        rows = []
        if rank < gpus:
            for size in SIZES:
                in_graph, one_by_one = measure(group, size)
                rows.append((size, in_graph))
                lines.append(f"{gpus},{size},{in_graph:.0f},{one_by_one:.0f}")
        dist.barrier()
        if rank == 0:
            fixed, rate, worst = fit(gpus, rows)
            print(f"{gpus} GPUs: fixed {fixed:.0f} ns, {rate:.1f} GB/s per direction, worst error {worst:.1%}")
    if rank == 0:
        print("\n".join(lines))
        if args.out:
            with open(args.out, "w", encoding="ascii") as file:
                file.write(f"# {torch.cuda.get_device_name()}, torch {torch.__version__}, "
                           f"NCCL {'.'.join(map(str, torch.cuda.nccl.version()))}\n")
                file.write("\n".join(lines) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
