from typing import Callable, List, Mapping, Optional, Tuple

__file__: str
version: str

class Run:
    summary: str
    table: str
    wall_s: float
    notes: List[str]
    def file(self, name: str) -> bytes: ...
    def save(self, folder: str, force: bool) -> None: ...

class Study:
    json: str
    table: str
    out: str

class SweepRequest:
    scenario: str
    out: str
    vary: List[str]
    sets: List[str]
    sampler: str
    samples: int
    seed: int
    shard: str
    jobs: int
    program: str
    force: bool
    columns: List[str]

class PlanRequest:
    scenario: str
    out: str
    load: str
    slos: List[str]
    vary: List[str]
    sets: List[str]
    losses: List[str]
    need: float
    seeds: int
    jobs: int
    program: str
    allow_roofline: bool

class EvaluateRequest:
    scenarios: List[str]
    tasks: List[str]
    budgets: List[int]
    sets: List[str]
    questions: int
    tokens: int
    per_session: int
    seed: int
    backends: List[str]
    out: str

def evaluate(
    request: EvaluateRequest, base: str, scorers: Mapping[str, Callable[..., object]], temporary: str, paired: str
) -> Tuple[str, str]: ...
def run(
    scenario: str,
    text: Optional[str],
    sets: List[str],
    timeline: str,
    allow_unread: bool,
    scorer_name: str,
    scorer: Optional[Callable[..., object]],
) -> Run: ...
def in_process_command(name: str) -> str: ...
def open(folder: str) -> Run: ...
def compare(
    real_text: str, real_name: str, ours_text: str, ours_name: str, skip: int, limits: List[str]
) -> Tuple[List[Tuple[str, str, float, float, float]], int, int, str, List[str], str]: ...
def compare_runs(
    first: Run, first_name: str, second: Run, second_name: str, limits: List[str]
) -> Tuple[str, str, List[str]]: ...
def sweep(request: SweepRequest) -> Study: ...
def plan(request: PlanRequest) -> Study: ...
def set_program_path(path: str) -> None: ...
def data_folder(name: str) -> str: ...
def shipped() -> List[str]: ...
def metric_name(word: str) -> str: ...
def metric_hint(word: str) -> str: ...
def metrics() -> List[Tuple[str, str, str]]: ...
def is_list(path: str) -> bool: ...
def fields() -> List[Tuple[str, str, str, str]]: ...
