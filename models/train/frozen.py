"""A frozen checkpoint that train.py wrote, for training the learned parts of policies."""

import argparse
import math
import time

import numpy as np
import torch
from safetensors.torch import load_file, save_file

import llama
import task_data


def load(folder, device):
    model = llama.Llama(llama.shape_of(folder))
    model.load_state_dict({k: v.float() for k, v in load_file(f"{folder}/model.safetensors").items()})
    for weight in model.parameters():
        weight.requires_grad_(False)
    return model.to(device).eval()


def save(tensors, path):
    """Writes the tensors that engine/common/scorer_weights.h reads, by name; bf16, like the model's weights."""
    save_file({k: v.detach().to("cpu", torch.bfloat16).contiguous() for k, v in tensors.items()}, path,
              metadata={"format": "pt"})


def sessions(tool, scratch, tasks, split, seed, count, tokens, questions):
    """Sessions of several tasks, shuffled by the seed: (ids, marks), [count * tasks][tokens]."""
    parts = [task_data.make(tool, f"{scratch}/{task}-{tokens}-{questions}-{seed}", task, split, seed, count,
                            tokens, questions) for task in tasks]
    order = np.random.default_rng(seed).permutation(count * len(tasks))
    return tuple(np.concatenate([part[i] for part in parts])[order] for i in range(2))


def part_of(step, batch, count):
    """The sessions of a step: one batch after the other, cyclically."""
    first = step * batch % (count - batch + 1)
    return slice(first, first + batch)


def answer_begins(marks):
    """Where outputs begin, [sessions][turns], padded with -1; scored outputs and tool requests both count."""
    said = marks > 0
    begins = said & ~np.pad(said, ((0, 0), (1, 0)))[:, :-1]
    turns = int(begins.sum(1).max())
    out = np.full((len(marks), turns), -1)
    for row, own in enumerate(begins):
        at = np.nonzero(own)[0]
        out[row, :len(at)] = at
    return out


def layers_of(model, ids):
    """Yields for each layer: (input of attention after its norm [B][T][D], q [B][Hq][T][d], k [B][Hq][T][d])."""
    x = model.embed(ids)
    cos, sin = llama.rotation(model.shape, torch.arange(ids.shape[1], device=ids.device))
    for layer in model.model.layers:
        hidden = layer.input_layernorm(x)
        q, k, _ = layer.self_attn.heads(hidden, cos, sin)
        yield hidden, q, k
        x = layer(x, cos, sin)


def most_attended(q, k, group, seen):
    """Per KV head, the largest attention of any query to a key: [B][H][T]. q [B][Hq][R][d], k [B][Hq][T][d], seen
    [B][R][T]: the keys that a query sees."""
    scores = (q @ k.transpose(2, 3)) / math.sqrt(q.shape[3])
    probabilities = torch.softmax(scores.masked_fill(~seen[:, None], -torch.inf), -1).nan_to_num(0)
    most = probabilities.amax(2)
    return most.view(most.shape[0], -1, group, most.shape[2]).amax(2)


def schedule(optimizer, peak, step, steps):
    """Warm-up over 5 %, then a cosine to zero."""
    warm = max(1, steps // 20)
    rate = peak * min(1.0, (step + 1) / warm) * 0.5 * (1 + math.cos(math.pi * step / steps))
    for group in optimizer.param_groups:
        group["lr"] = rate


def arguments(**defaults):
    """A parser of the options of all parts, with the defaults of this one."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kvtwin", required=True, help="the program: its make-task writes the sessions")
    parser.add_argument("--model", required=True, help="the folder of the checkpoint")
    parser.add_argument("--out", required=True, help="the file to write")
    parser.add_argument("--seconds", type=float, help="stops after so long, whatever the steps")
    parser.add_argument("--rate", type=float)
    parser.add_argument("--batch", type=int, help="sessions of a step")
    parser.add_argument("--tokens", type=int, help="of a session")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.set_defaults(**{"seconds": 60, "rate": 3e-3, "tokens": 384, "seed": 1, **defaults})
    return parser


def learn(name, parameters, args, steps, loss_of, weight_decay=0.0, say_every=50):
    """Minimises the loss in `steps` steps, or in as many as args.seconds allow; returns their number. loss_of(step):
    the loss, and details to print with it."""
    parameters = list(parameters)
    optimizer = torch.optim.AdamW(parameters, lr=args.rate, weight_decay=weight_decay)
    began, done = time.time(), 0
    while done < steps and time.time() - began <= args.seconds:
        loss, more = loss_of(done)
        schedule(optimizer, args.rate, done, steps)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        done += 1
        if done % say_every == 1 or done == steps:
            print(f"{name} step {done}: loss {loss.item():.4f}{more()} {time.time() - began:.0f} s", flush=True)
    print(f"{name}: {done} of {steps} steps", flush=True)
    return done
