"""Time of a training step: PyTorch's choice of kernels against deterministic ones (README.md).

  python3 models/train/step_time.py      # on an otherwise idle GPU
"""

import time
import types

import torch

import llama
import train

ROWS, STEPS, WARM = 65536, 9, 2


def batch(tokens):
    ids = torch.randint(0, 256, (ROWS // tokens, tokens), device="cuda")
    return ids[:, :-1], ids[:, 1:], torch.ones_like(ids[:, 1:]).float()


def median_ms(tokens, loose):
    torch.use_deterministic_algorithms(not loose)
    args = types.SimpleNamespace(loose=loose, device="cuda", rate=1e-4)
    model = llama.Llama(llama.Shape(family="qwen3")).draw(1).to("cuda")
    optimizer, data, times = train.make_optimizer(model, args), batch(tokens), []
    for _ in range(STEPS):
        torch.cuda.synchronize()
        begin = time.time()
        train.train_step(model, optimizer, data, args.rate, args)
        torch.cuda.synchronize()
        times.append(time.time() - begin)
    return 1e3 * sorted(times[WARM:])[(STEPS - WARM) // 2]


def main():
    torch.set_float32_matmul_precision("highest")
    for tokens in (512, 8192):
        for loose in (True, False):
            name = "loose" if loose else "deterministic"
            print(f"{tokens} tokens, {name}: {median_ms(tokens, loose):.1f} ms a step", flush=True)


if __name__ == "__main__":
    main()
