#!/usr/bin/env python3
"""Fits gemm_read_fraction and gemm_fixed_ns of a device file to the matrix products of measured profiles.

kernels/bench/fit_products.py models/device/h100.textproto models/measured/h100.textproto [PROFILE...]

A product of M rows with a [N, K] weight in bf16 is priced as in models/cost/roofline_cost.cc:

    join(2 M N K / (bf16_flop_per_s x gemm_fraction),
         2 (N K + M (N + K)) / (hbm_bytes_per_s x gemm_read_fraction)) + gemm_fixed_ns

The two figures minimise the squared errors at 1 to 16 rows, where arithmetic is a tenth of the time or less.
An error counts relative to the time of the layer's products together at as many rows; the output head's, to
its own time, with a quarter of the weight. Whole steps are not read: they validate.
"""

import pathlib
import re
import sys

RIDGE_NORM = 2.5  # kRidgeNorm
ROWS_MAX = 16
LAYER, HEAD = ("qkv", "attention out", "gate up", "down"), ("logits",)


def figure(text: str, name: str) -> float:
    return float(re.search(rf"^{name} {{ value: (\S+)", text, re.M)[1])


def numbers(text: str) -> list[float]:
    return [float(number) for number in text.split(",")]


class Product:
    """One product of a profile; `us` by rows."""

    def __init__(self, name: str, outputs: int, inputs: int, us: dict[float, float]):
        self.name, self.outputs, self.inputs, self.us = name, outputs, inputs, us

    def errors(self, flops: float, bandwidth: float, fixed_us: float) -> dict[float, float]:
        """Of the prices, relative, by rows; `flops` and `bandwidth` as products reach them."""
        out = {}
        for rows, us in self.us.items():
            arithmetic = 2 * rows * self.outputs * self.inputs / flops * 1e6
            read = 2 * (self.outputs * self.inputs + rows * (self.outputs + self.inputs)) / bandwidth * 1e6
            out[rows] = (join(arithmetic, read) + fixed_us) / us - 1
        return out


def products(profile: str) -> list[Product]:
    table = re.compile(r'table { operation: "([^"]+)" shape: "(\d+)x(\d+)"\n  rows: \[([^]]*)\]\n  us: \[([^]]*)\]')
    found = []
    for name, outputs, inputs, rows, us in table.findall(pathlib.Path(profile).read_text()):
        if name in LAYER + HEAD:
            points = zip(numbers(rows), numbers(us))
            found.append(Product(name, int(outputs), int(inputs), {r: us for r, us in points if r <= ROWS_MAX}))
    return found


def join(a: float, b: float) -> float:
    return (a**RIDGE_NORM + b**RIDGE_NORM) ** (1 / RIDGE_NORM)


def loss(profiles: list[list[Product]], flops: float, bandwidth: float, fixed_us: float) -> float:
    total = 0.0
    for profile in profiles:
        for product in profile:
            for rows, error in product.errors(flops, bandwidth, fixed_us).items():
                if product.name in HEAD:
                    total += error**2 / 4
                else:
                    layer = sum(one.us[rows] for one in profile if one.name in LAYER)
                    total += (error * product.us[rows] / layer) ** 2
    return total


def report(profiles: list[list[Product]], flops: float, bandwidth: float, fixed_us: float) -> None:
    for profile in profiles:
        for product in profile:
            errors = product.errors(flops, bandwidth, fixed_us).values()
            mean, worst = sum(errors) / len(errors), max(map(abs, errors))
            size = f"{product.outputs} x {product.inputs}"
            print(f"  {product.name:<14}{size:<15} mean error {100 * mean:+5.1f} %, largest {100 * worst:.1f} %")


def main() -> None:
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    device = pathlib.Path(sys.argv[1]).read_text()
    flops = figure(device, "bf16_flop_per_s") * figure(device, "gemm_fraction")
    peak = figure(device, "hbm_bytes_per_s")
    profiles = [products(profile) for profile in sys.argv[2:]]
    grid = [(f / 1000, us / 10) for f in range(700, 1001, 5) for us in range(0, 101)]
    fraction, fixed = min(grid, key=lambda at: loss(profiles, flops, peak * at[0], at[1]))
    print(f"gemm_read_fraction {fraction:.3f}, gemm_fixed_ns {fixed * 1000:.0f}")
    report(profiles, flops, peak * fraction, fixed)
    if "gemm_read_fraction" in device:
        print("as the file has it:")
        fraction, fixed = figure(device, "gemm_read_fraction"), figure(device, "gemm_fixed_ns") / 1000
        report(profiles, flops, peak * fraction, fixed)


if __name__ == "__main__":
    main()
