"""Trains the tiny models on tasks (README.md). The shipped weights are in models/tiny/.

  python3 models/train/train.py --kvtwin=build/release/scenarios/kvtwin --out=/tmp/tiny --seconds=200

Steps per stage are given by --steps, or found once by timing each stage and filling --seconds. Either way they are
written to recipe.json. Steps and seed determine the data and their order, and on the same GPU and PyTorch also the
bits of the weights (except with --loose).
"""

import argparse
import contextlib
import itertools
import json
import math
import os
import pathlib
import tempfile
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when CUDA starts: sums in one order

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

import llama
import task_data

TASKS = ["needle", "multi_key", "multi_value", "variable_tracking", "multi_hop", "old_result", "changing_intent",
         "tool_schema", "question_first", "long_list"]
# Short contexts first: lookup heads form where there is little to search. `fraction`: of the time.
STAGES = [
    {"tokens": 128, "questions": [12], "fraction": 0.30},
    {"tokens": 256, "questions": [16, 4], "fraction": 0.30},
    {"tokens": 512, "questions": [24, 4], "fraction": 0.40},
]




def stages_of(args):
    if not args.stages:
        return STAGES
    out = []
    for word in args.stages.split(","):
        tokens, questions, fraction = word.split(":")
        out.append({"tokens": int(tokens), "questions": [int(q) for q in questions.split("/")], "fraction": float(fraction)})
    return out


def tests_of(args):
    """Number of test sessions per task, by tokens; none longer than the training sessions."""
    if args.tests == "none":
        return {}
    longest = max(384, *(stage["tokens"] for stage in args.stages))
    pairs = [[int(number) for number in word.split(":")] for word in args.tests.split(",")]
    return {tokens: 8 if args.smoke else sessions for tokens, sessions in pairs
            if tokens <= (384 if args.smoke else longest)}


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--kvtwin", required=True, help="the program, or one that has its make-task")
    parser.add_argument("--out", required=True)
    parser.add_argument("--seconds", type=float, default=200)
    parser.add_argument("--steps", default="", help="per stage, instead of --seconds: 1000,900,600")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--batch-tokens", type=int, default=131072)
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--stages", default="", help="instead of STAGES: tokens:questions/questions:share,...")
    parser.add_argument("--interleave", action="store_true", help="steps of all stages in turn: for weights that know short ones")
    parser.add_argument("--emphasis", default="", help="tasks that have every other shard: a,b")
    parser.add_argument("--shard-batches", type=int, default=48)
    parser.add_argument("--resume", default="", help="a folder that --out named before: goes on from its weights")
    parser.add_argument("--family", choices=["llama", "qwen3"], default="llama", help="qwen3 goes on from a llama too")
    parser.add_argument("--tests", default="384:128,2048:32,8192:8", help="tokens:sessions,... of each task's test; or none")
    parser.add_argument("--also", default="", help="more tasks for the test: a,b")
    parser.add_argument("--limit", type=float, default=math.inf, help="seconds after which training ends, whatever the steps")
    parser.add_argument("--smooth", type=float, default=0, help="weight of a term that makes neighbouring answer queries alike")
    parser.add_argument("--smooth-goal", type=float, default=0.95, help="the cosine above which the term is zero")
    parser.add_argument("--loose", action="store_true", help="let PyTorch choose kernels: the weights' bits may differ")
    parser.add_argument("--smoke", action="store_true", help="tiny batches, two steps a stage: does it run?")
    args = parser.parse_args()
    args.stages = stages_of(args)
    args.tests = tests_of(args)
    return args


def rate_at(progress, peak):
    """Warm-up over 2 %, then a cosine down to 3 % of the peak."""
    if progress < 0.02:
        return peak * (0.05 + 0.95 * progress / 0.02)
    return peak * (0.03 + 0.97 * 0.5 * (1 + math.cos(math.pi * min(1.0, (progress - 0.02) / 0.98))))


def make_optimizer(model, args):
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.05}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=args.rate, betas=(0.9, 0.98), fused=args.device == "cuda")


def attention_kernel(args):
    """Selects FlashAttention: its backward pass has a deterministic form, used if deterministic algorithms are
    requested; cuDNN's has none."""
    if args.loose or args.device != "cuda":
        return contextlib.nullcontext()
    from torch.nn.attention import SDPBackend, sdpa_kernel
    return sdpa_kernel(SDPBackend.FLASH_ATTENTION)


def group_cosines(queries, group):
    """Cosine of each row's query with that of the row before, mean over the query heads of a KV head, by layer but
    for the first (FreeKV leaves it dense): [layers - 1][B][H][T - 1] (docs/design/methods/freekv.md#step)."""
    rows = torch.stack(queries[1:]).float()
    each = F.cosine_similarity(rows[..., 1:, :], rows[..., :-1, :], dim=-1)
    return each.unflatten(2, (-1, group)).mean(3)


def roughness(queries, weights, args):
    """How far neighbouring queries of scored answers are below --smooth-goal, on average."""
    cosines = group_cosines(queries, llama.Shape.query_heads // llama.Shape.kv_heads)
    both = ((weights[:, 1:] == 1) & (weights[:, :-1] == 1)).float()[None, :, None]
    lacks = F.relu(args.smooth_goal - cosines) * both
    return lacks.sum() / (both.sum() * cosines.shape[0] * cosines.shape[2]).clamp(min=1)


def loss_of(model, batch, args):
    ids, targets, weights = batch
    queries = [] if args.smooth > 0 else None
    with torch.autocast(args.device, dtype=torch.bfloat16), attention_kernel(args):
        logits = model(ids, queries)
    each = F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), reduction="none")
    loss = (each * weights.flatten()).sum() / weights.sum()
    return loss if queries is None else loss + args.smooth * roughness(queries, weights, args)


def train_step(model, optimizer, batch, rate, args):
    for group in optimizer.param_groups:
        group["lr"] = rate
    loss = loss_of(model, batch, args)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.detach()


@torch.no_grad()
def accuracy(model, sets, device, rounded):
    """Exact answers per task with the shipped weights (`rounded` to bf16), computed in fp32 as on the CPU engine."""
    shipped = llama.Llama(model.shape).to(device)
    shipped.load_state_dict({k: v.to(torch.bfloat16).float() if rounded else v
                             for k, v in model.state_dict().items()})
    out = {}
    for task, (ids, marks) in sets.items():
        guesses = np.zeros_like(ids)
        rows = 32 if ids.shape[1] <= 2048 else 4
        for first in range(0, len(ids), rows):
            part = torch.from_numpy(ids[first:first + rows].astype(np.int64)).to(device)
            guesses[first:first + rows, 1:] = shipped(part)[:, :-1].argmax(-1).cpu().numpy()
        out[task] = list(task_data.answers(ids, marks, guesses))
        if task == "tool_schema":
            print("  tool_schema by token of the answer:", task_data.by_token(ids, marks, guesses), flush=True)
    return out


def test_sets(args, scratch):
    """(ids, marks) by task, or by task@tokens for lengths other than the first."""
    out = {}
    for tokens, sessions in args.tests.items():
        for task in TASKS + (args.also.split(",") if args.also else []):
            name = task if tokens == 384 else f"{task}@{tokens}"
            out[name] = task_data.make(args.kvtwin, f"{scratch}/test-{name}", task, "test", 1, sessions, tokens, 4)
    return out


def say_accuracy(label, result):
    print(label, " ".join(f"{task}={right / asked:.3f}" for task, (right, asked) in result.items()), flush=True)


@torch.no_grad()
def say_similarity(model, args, scratch):
    """Prints, of the answers of two tasks, the cosine of neighbouring queries and the fraction of heads below tau."""
    for task, tokens in (("repeat", 512), ("repeat", 2048), ("long_list", 2048)):
        ids, marks = task_data.make(args.kvtwin, f"{scratch}/similar-{task}", task, "test", 3, 8, tokens, 4)
        batch, _, weights = task_data.to_batch(ids, marks, args.device)
        queries = []
        model(batch, queries)
        both = ((weights[:, 1:] == 1) & (weights[:, :-1] == 1))[None, :, None]
        cosines = group_cosines(queries, model.shape.query_heads // model.shape.kv_heads)
        some = cosines.masked_select(both.expand_as(cosines))
        by_layer = [round(c.masked_select(both[0].expand_as(c)).mean().item(), 3) for c in cosines]
        corrected = " ".join(f"{tau}:{(some < tau).float().mean().item():.3f}" for tau in (0.7, 0.8, 0.9, 0.95))
        print(f"similarity {task}@{tokens}: mean {some.mean().item():.3f}, by layer {by_layer}, corrected at tau {corrected}",
              flush=True)


def steps_of(args, model, sources):
    """Steps per stage that fill the time, from a few timed steps on weights that are discarded. Their batches are
    used again: the steps of a recipe see the same ones."""
    if args.smoke:
        return [2] * len(args.stages)
    if args.steps:
        return [int(word) for word in args.steps.split(",")]
    retained = {k: v.clone() for k, v in model.state_dict().items()}
    optimizer, steps = make_optimizer(model, args), []
    for number, stage in enumerate(args.stages):
        batch = next(sources[number])
        sources[number] = itertools.chain([batch], sources[number])
        for i in range(13):
            if i == 3:
                torch.cuda.synchronize()
                begin = time.time()
            train_step(model, optimizer, batch, 1e-5, args)
        torch.cuda.synchronize()
        each = (time.time() - begin) / 10
        steps.append(max(1, int(args.seconds * stage["fraction"] / (each * 1.04))))
        print(f"stage {stage['tokens']}: {each * 1e3:.1f} ms a step, {steps[-1]} steps", flush=True)
    model.load_state_dict(retained)
    return steps


def order_of(steps, interleave):
    """The stage of each step: one stage after the other, or evenly interleaved."""
    if not interleave:
        return [stage for stage, count in enumerate(steps) for _ in range(count)]
    places = [((i + 0.5) / count, stage) for stage, count in enumerate(steps) for i in range(count)]
    return [stage for _, stage in sorted(places)]


class Notebook:
    """The output of a run: weights, loss curve, recipe. Written every minute, so that a time limit loses at most a
    minute."""

    def __init__(self, args, shape, steps):
        self.args, self.steps, self.curve, self.last, self.began = args, steps, [], time.time(), time.time()
        self.shape = shape
        self.out = pathlib.Path(args.out)
        self.out.mkdir(parents=True, exist_ok=True)

    def note(self, step, stage, loss, rate):
        self.curve.append((step, stage, loss, rate))

    def keep(self, model, result):
        self.last = time.time()
        llama.write(model, self.out)
        rows = [f"{step},{stage},{loss:.5f},{rate:.3e}\n" for step, stage, loss, rate in self.curve]
        (self.out / "loss.csv").write_text("step,stage_tokens,loss,rate\n" + "".join(rows))
        recipe = {"shape": vars(self.shape), "seed": self.args.seed, "batch_tokens": self.args.batch_tokens,
                  "rate": self.args.rate, "resumed": bool(self.args.resume), "emphasis": self.args.emphasis,
                  "shard_batches": self.args.shard_batches, "stages": self.args.stages, "interleave": self.args.interleave,
                  "smooth": self.args.smooth, "smooth_goal": self.args.smooth_goal, "limit": str(self.args.limit),
                  "steps": self.steps, "steps_done": self.curve[-1][0] if self.curve else 0, "deterministic": not self.args.loose, "weights": llama.fingerprint(model),
                  "torch": torch.__version__,
                  "device": torch.cuda.get_device_name() if self.args.device == "cuda" else "cpu",
                  "seconds": round(time.time() - self.began, 1),
                  "test": {task: {"right": r, "asked": n} for task, (r, n) in result.items()}}
        (self.out / "recipe.json").write_text(json.dumps(recipe, indent=1) + "\n")


def main():
    args = arguments()
    torch.manual_seed(args.seed)
    torch.use_deterministic_algorithms(not args.loose)
    torch.set_float32_matmul_precision("highest")
    if args.smoke:
        args.batch_tokens = 4096
    scratch = tempfile.mkdtemp(dir="/dev/shm" if pathlib.Path("/dev/shm").is_dir() else None)
    sets = test_sets(args, scratch)
    model = llama.Llama(llama.Shape(family=args.family)).draw(args.seed).to(args.device)
    if args.resume:
        retained = load_file(f"{args.resume}/model.safetensors")
        some, _ = task_data.make(args.kvtwin, f"{scratch}/some", "mixed", "train", args.seed, 8, 384, 4)
        model.take_over({name: value.float() for name, value in retained.items()},
                        torch.from_numpy(some.astype(np.int64)).to(args.device))
    print(sum(p.numel() for p in model.parameters()), "parameters", flush=True)
    emphasis = args.emphasis.split(",") if args.emphasis else []
    loaders = [task_data.Batches(args.kvtwin, scratch, dict(stage, shard_batches=args.shard_batches), args.seed,
                                 args.batch_tokens, args.device, emphasis)
               for stage in args.stages]
    sources = [iter(loader) for loader in loaders]
    steps = steps_of(args, model, sources)
    book = Notebook(args, model.shape, steps)
    book.keep(model, accuracy(model, sets, args.device, True))
    optimizer, done, total = make_optimizer(model, args), 0, sum(steps)
    losses = []
    for number in order_of(steps, args.interleave):
        stage = args.stages[number]
        rate = rate_at(done / total, args.rate)
        losses.append(train_step(model, optimizer, next(sources[number]), rate, args))
        done += 1
        if done % 25 == 0 or done == total:
            book.note(done, stage["tokens"], torch.stack(losses).mean().item(), rate)
            losses = []
        if done % 50 == 0:
            print(f"step {done}/{total} {stage['tokens']} loss {book.curve[-1][2]:.4f} "
                  f"{time.time() - book.began:.0f} s", flush=True)
        if time.time() - book.began > args.limit:
            print(f"limit reached after {done} of {total} steps", flush=True)
            break
        if time.time() - book.last > 60:
            result = accuracy(model, sets, args.device, True)
            say_accuracy(f"  after {done}:", result)
            book.keep(model, result)
    result = accuracy(model, sets, args.device, True)
    book.keep(model, result)
    say_accuracy("shipped:", result)
    say_similarity(model, args, scratch)
    print("weights", llama.fingerprint(model), f"{time.time() - book.began:.1f} s", flush=True)
    for loader in loaders:
        loader.close()


if __name__ == "__main__":
    main()
