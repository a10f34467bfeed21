"""Batches of tasks, as `kvtwin trace make-task --arrays` writes them (traces/tasks/make_task.h).

A stage of the curriculum is one size of session. Its shards are made concurrently with training, each from its own
seed: batch i of a stage is the same in every run. Only the split "train" is used.
"""

import concurrent.futures
import pathlib
import subprocess

import numpy as np
import torch

SCORED, TOOL_CALL = 2, 1


def make(tool, prefix, task, split, seed, sessions, tokens, questions):
    """Runs the generator and returns (ids uint16, marks uint8), [sessions][tokens]. Removes its files."""
    command = [tool, "trace", "make-task", task, f"--split={split}", f"--seed={seed}", f"--sessions={sessions}",
               f"--tokens={tokens}", f"--questions={questions}", f"--arrays={prefix}"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    paths = [pathlib.Path(f"{prefix}.{kind}.npy") for kind in ("tokens", "scored")]
    arrays = [np.load(path) for path in paths]
    for path in paths:
        path.unlink()
    return arrays


class Batches:
    """Endless batches of one stage: (ids, targets, weights) on `device`; targets are the next tokens."""

    AHEAD = 6  # shards that are made ahead

    def __init__(self, tool, scratch, stage, seed, batch_tokens, device, emphasis):
        # Emphasised tasks have every other shard.
        self.kinds = [kind for task in emphasis for kind in ("mixed", task)] or ["mixed"]
        self.tool, self.scratch, self.stage, self.seed, self.device = tool, scratch, stage, seed, device
        self.rows = batch_tokens // stage["tokens"]
        self.pool = concurrent.futures.ThreadPoolExecutor(self.AHEAD)
        self.shards, self.next = [], 0

    def request(self):
        # Sessions with many questions teach most per token; evaluated sessions have few.
        number, tokens = self.next, self.stage["tokens"]
        questions = self.stage["questions"][number // len(self.kinds) % len(self.stage["questions"])]
        task = self.kinds[number % len(self.kinds)]
        self.next += 1
        prefix = f"{self.scratch}/train-{tokens}-{number}"
        self.shards.append(self.pool.submit(make, self.tool, prefix, task, "train",
                                            self.seed * 1_000_000 + tokens * 1_000 + number,
                                            self.rows * self.stage["shard_batches"], tokens, questions))

    def __iter__(self):
        for _ in range(self.AHEAD):
            self.request()
        while True:
            ids, marks = self.shards.pop(0).result()
            self.request()
            for first in range(0, len(ids), self.rows):
                yield to_batch(ids[first:first + self.rows], marks[first:first + self.rows], self.device)

    def close(self):
        for shard in self.shards:
            shard.cancel()
        self.pool.shutdown(wait=True)


def to_batch(ids, marks, device):
    ids = torch.from_numpy(ids.astype(np.int64)).to(device, non_blocking=True)
    marks = torch.from_numpy(marks).to(device, non_blocking=True)
    weights = (marks == SCORED).float() + 0.25 * (marks == TOOL_CALL).float()
    return ids[:, :-1], ids[:, 1:], weights[:, 1:]


def answers(ids, marks, guesses):
    """(right answers, answers): right if all tokens were predicted. An answer is a run of SCORED marks."""
    scored = marks == SCORED
    problem = scored & (ids != guesses)
    begins = scored & ~np.pad(scored, ((0, 0), (1, 0)))[:, :-1]
    number = np.cumsum(begins.reshape(-1)) - 1
    bad = np.bincount(number[problem.reshape(-1)], minlength=int(begins.sum())) > 0
    return int((~bad).sum()), int(begins.sum())


def by_token(ids, marks, guesses):
    """Fraction of right tokens by position in the answer, to three digits."""
    scored = marks == SCORED
    place = np.zeros(ids.shape, int)
    for at in range(1, ids.shape[1]):
        place[:, at] = np.where(scored[:, at] & scored[:, at - 1], place[:, at - 1] + 1, 0)
    right = ids == guesses
    return [round(float(right[scored & (place == i)].mean()), 3) for i in range(int(place[scored].max()) + 1)]
