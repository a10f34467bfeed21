#include <algorithm>

#include "scenarios/cli/cli.h"

namespace kvtwin {
namespace {

constexpr char kMain[] = R"(kvtwin: what would another KV-cache policy, GPU or trace have done?

  kvtwin run     scenarios/shipped/coding_agents_small.textproto   run one scenario; print what happened
  kvtwin replay  out/run-3f0c                              same log, same decisions?
  kvtwin sweep   SCENARIO --vary=limits.requests_max=16..256*2 --out=out/sweep   run it at many points
  kvtwin plan    SCENARIO --slo='ttft_p99<2s' --load=FIELD=LOW..HIGH --need=LOAD   which hardware and policy are enough?
  kvtwin report  out/run-3f0c out/sweep --out=report.html  one page with plots, no network needed
  kvtwin compare out/run-3f0c requests.jsonl               beside a real server's request log
  kvtwin trace   import azure conv.csv --out=conv.trace    bring traces in; inspect, cut, export, make them
  kvtwin model   import config.json --name=mine            bring a model in; show, init
  kvtwin explain scenarios/methods/freekv.textproto --step=20   one step: operations, critical path
  kvtwin calibrate policy budgets scenarios/shipped/search_tiny.textproto   budgets, bits, profiles from values
  kvtwin validate scenarios/suites/validation/mixed.textproto --out=out/v   a real run beside its simulation
  kvtwin calibrate device --out=models/measured/mine.textproto     what this GPU takes, for validate and run
  kvtwin inspect-policy scenarios/shipped/search_tiny.textproto      how good is what scorers keep, by budget
  kvtwin evaluate scenarios/quality/*.textproto --out=out/quality   does the kept KV still answer
  kvtwin import  vllm-result.json --out=out/real           a real server's run, for report and compare
  kvtwin list    policies | models | devices | nodes | scenarios | presets | formats

kvtwin COMMAND --help, or kvtwin help COMMAND, says more; kvtwin version. Options are written --name=value. SCENARIO is
a file or the name of a shipped scenario (kvtwin list scenarios), as in kvtwin run coding_agents_small.
Exit status: 0 done, 1 the answer is no, 2 wrong input, 3 the environment failed (output that cannot be written
too), 4 this build or this machine has no such world.
)";

constexpr char kRun[] = R"(Run one scenario and print what happened.

  kvtwin run scenarios/shipped/mooncake_conversation.textproto
  kvtwin run scenarios/shipped/weka_h200.textproto --set=memory.host_bytes=1000000000000 --set=replay.population=64

  kvtwin run scenarios/shipped/search_tiny.textproto --backend=cpu --clock=wall

  SCENARIO              a .textproto file (traces/proto/scenario.proto says what can be in it), or the name of a
                        shipped one (kvtwin list scenarios)
  --out=DIR             where the result goes; else out/run- and the fingerprint of all inputs
  --format=table        or json, jsonl, csv: one flat record
  --seed=N              the same as --set=seed=N
  --set=FIELD=VALUE     change a field, as in --set=limits.requests_max=128; may be repeated. A field that the other
                        settings leave unread is an error that says which setting makes it count. A path is relative
                        to the working directory, or to the scenario file if the working directory does not have it
  --allow-unread        no error then
  --force               replace a result of other inputs in --out
  --backend=WORLD         sim: nothing is computed, everything is timed; cpu: real tokens, in fp32;
                        cuda: likewise on the GPU, in bf16
  --clock=CLOCK         of backends cpu and cuda. wall: steps take what they take; virtual: what the cost
                        model says
  --record              keep the event log too (log.binpb), for kvtwin replay
  --timeline=FROM..TO   keep what ran in these seconds, for ui.perfetto.dev (timeline.perfetto-trace) and
                        for chrome://tracing and reports (timeline.json)
  --prefix-bound        say how much of the prompts a cache that knows the future could have found
  --no-write            print only, write nothing
  --quiet               no progress on stderr

The result: run.binpb, requests.csv, tools.csv, requests.jsonl and scenario.resolved.textproto, in place of an earlier
run's. Same inputs, same bytes, unless times were measured (--clock=wall).
)";

constexpr char kReplay[] =
    R"(Decide a recorded run again, with neither backend, and say whether the decisions are the same.

  kvtwin run scenarios/shipped/coding_agents_small.textproto --record --out=out/a
  kvtwin replay out/a

  RUN_DIR               the result of a run with --record
  --format=table        or json, jsonl, csv
  --quiet               no progress on stderr

Exit status 1 if decisions differ; then the first difference is named. 2 if the log is of another run than the result
beside it.
)";

constexpr char kCompare[] = R"(Compare a run with what a real server logged, metric by metric.

  kvtwin compare out/run-3f0c vllm/requests.jsonl --skip=30

  RUN_DIR               the result of a run
  REQUESTS              JSON lines: request_id, input_toks, output_toks, queued_ts, first_token_ts,
                        last_token_ts
  --skip=N              leave out the first N requests of the log: what was calibrated on is not scored
  --limit=METRIC=PCT    exit with 1 if a difference is larger, as in --limit=ttft.mean=1.0; may be repeated
  --format=table        or json, jsonl, csv

TTFT and latency count from queued_ts on both sides. Percentiles interpolate as numpy's do.
)";

constexpr char kExplain[] =
    R"(Price one step of a scenario's engine, operation by operation: the critical path, what transfers cost
beyond what they hide behind, and how much later each operation could end without anybody noticing.

  kvtwin explain scenarios/methods/freekv.textproto --step=20 --layers=0..2 --out=step.dot
  kvtwin explain scenarios/methods/arkvale.textproto --shape=decodes=4,context=32768

  SCENARIO              as for kvtwin run; always priced in the simulated backend
  --step=N              the Nth single step of the engine in the run, from 0
  --shape=SHAPE         or a step of alike requests, the third of three: decodes=N,context=TOKENS and
                        chunks=N,chunk_tokens=TOKENS,chunk_context=TOKENS, compress=1: chunks end with a
                        compression
  --engine=N            of --step; 0 if it is not given
  --out=FILE            the graph for Graphviz: streams as clusters, the critical path in red, predicated
                        operations dashed, those that do not happen dotted, background ones rounded
  --layers=FROM..TO     of the graph; all if it is not given
  --format=table        or json, jsonl, csv: one record per operation
  --set=FIELD=VALUE     change a field; may be repeated

Slack of background operations is against a next step alike. Copies are priced as if they had their links
for themselves.
)";

constexpr char kInspectPolicy[] =
    R"(Run prompts of a scenario's trace through its model on the CPU engine, let scorers choose what to keep, and
compare that with what the response's own queries would have kept, and with attention over everything.

  kvtwin inspect-policy scenarios/shipped/search_tiny.textproto --scorers=oracle,snapkv,random --budgets=64,256
  kvtwin inspect-policy scenarios/shipped/search_tiny.textproto --set=cpu.checkpoint=llama --format=csv --out=hits.csv

  SCENARIO              whose model, weights and trace are taken; its policies play no part
  --scorers=A,B         kvtwin list policies names them, with their published options (the scenario's own scorer
                        with the scenario's); oracle: the response asks
  --budgets=N,M         KV entries of one head
  --sinks=N --window=N  of these, kept whatever their score; 0 if not given
  --response=N          tokens of each output that choose; 64 if not given
  --error-tokens=N        of them, rows whose attention is compared; 8 if not given
  --contexts=N          prompts of the trace, evenly spread; 16 if not given
  --context-min=N --context-max=N   tokens; other prompts are left out; 1 and 4096 if not given
  --format=table        or json, jsonl, csv: one record per scorer, budget and layer
  --out=FILE            instead of standard output
  --set=FIELD=VALUE     change a field; may be repeated

hit rate: of the KV entries that the response chooses, those that the scorer kept, mean over layers, heads and
contexts. random: what chance would get. error: relative L2 of attention's output without the rest.
)";

constexpr char kEvaluate[] =
    R"(Ask a model that was trained on tasks, under many policy sets and budgets, and count right answers.

  kvtwin evaluate scenarios/quality/*.textproto --questions=500 --out=out/quality
  kvtwin evaluate scenarios/quality/full.textproto --tasks=needle,multi_hop --out=out/full --format=csv

  SCENARIO...           policy sets: scenario files with a model and its checkpoint; their traces play no part
  --tasks=A,B           kvtwin trace make-task --list names them
  --budgets=N,M         KV entries of one head, for policy sets that have a budget: budget_options.kv_entries if the file sets
                        it, else ratio (of the mean prompt), retrieval_options.budget_tokens where they retrieve
  --questions=N         that count in a KV entry, at least; 100 if not given
  --tokens=N            of a session, 384; --per-session=N questions in it, 4; --seed=N of the test split, 1
  --out=DIR             cells/ has a file per KV entry; what is there is not computed again. quality.csv, quality.json
  --backend=cpu           cuda,cpu: on the GPU what it computes, on the CPU what it does not
  --batch=N             sessions at once, 8; more need a GPU to be worth it. limits and pages grow with it
  --jobs=N              processes at once; N,M with --backend=cuda,cpu: N for what the GPU computes, M beside them for the rest
  --shard=I/N           every N-th KV entry from the I-th on: run N processes on one DIR, then once more without
  --collect=DIR         KV entries of another evaluation are rows too, or of its quality.csv; may be repeated, and needs no
                        SCENARIO. One model, and sessions drawn alike; of a KV entry that is there twice, the one with more
                        questions
  --throughput=LOAD     simulate a scenario with each policy set, its budget as the same fraction of a prompt: column
                        simulated_tokens_per_s. --sets-in=DIR: where collected KV entries' policy sets are
  --format=table        or json, jsonl, csv: one record per KV entry
  --set=FIELD=VALUE     of every KV entry; may be repeated. A field that no KV entry reads is an error
  --allow-unread        no error then
  --quiet               no line per KV entry on stderr

An answer is right if all its tokens are. [low high]: 95 % interval (Wilson). Decoding is forced, which finds the same
answers right as greedy decoding does. A policy set that is refused is a row that says why. Exit status 1 if a row was
refused, 2 if all were.
)";

constexpr char kSweep[] =
    R"(Run one scenario at many points of its fields; keep every result; go on where it was killed.

  kvtwin sweep scenarios/shipped/coding_agents_small.textproto --vary=limits.requests_max=4..64*2 --vary=seed=1,2,3 --out=out/sweep

  SCENARIO              a .textproto file; or FILE.sweep.textproto, which says all of this itself
                        (traces/proto/sweep.proto), and to which the command line adds
  --vary=FIELD=VALUES   one axis; may be repeated. 1,2,5 these; 1..8*2 = 1,2,4,8; 1..7+3 = 1,4,7;
                        sampled: 1..8 evenly (whole numbers if both ends are), 0.01..10* on a logarithmic scale
  --out=DIR             points/KEY holds each result, KEY being the fingerprint of its inputs; index.sqlite all. A
                        folder is of one sweep; else out/sweep- and the fingerprint of scenario, axes and --set
  --force               take the folder of another sweep (scenario, axes or --set): its points stay, index.sqlite
                        leaves them out
  --set=FIELD=VALUE     of every point
  --samples=N           sample N points instead of running every combination
  --sampler=sobol       or random
  --seed=N              of the sample
  --halve=METRIC:min    successive halving, or :max: all points at the first rung, the best at the next
  --rungs=FIELD=VALUES  cheapest first, as in --rungs=replay.sessions_max=20,100,692
  --keep-one-of=3       of a rung's points
  --jobs=N              processes at once; else one per core
  --launcher=slurm      as an array job of --tasks=N shards on --jobs=C CPUs each; waits for it and collects.
                        --sbatch=--partition=x hands more to sbatch; may be repeated
  --shard=I/N           every N-th point from the I-th on (from 0), for any other scheduler: same DIR, or
                        copy points/ together; then the command without --shard collects
  --format=table        or csv, json, jsonl: all metrics of all points
  --columns=A,B         of the table
  --dry-run             run nothing, show what is there
  --quiet               no progress on stderr

A point that fails is a row with its error, and runs again next time. Exit status 1 if there is one.
)";

constexpr char kPlan[] =
    R"(The cheapest configuration that keeps what is promised, its margin, and what breaks first.

  kvtwin plan scenarios/shipped/coding_agents_small.textproto --slo='ttft_p99<2s' --slo='tpot_p95<40ms'
              --load=replay.population=1..480 --need=200 --set=replay.arrivals=fixed_population
              --set=replay.replicas=20 --vary=hardware.node=h200,h100 --vary=engines.count=1..8*2
              --set=hardware.nodes=0 --allow-roofline

  SCENARIO              scenario file
  --slo=PROMISE         ttft_p99<2s, tpot_p95<40ms, session_p90<10min, e2e_mean<1min, itl_p99<100ms;
                        goodput>=95% with conditions of each request: ttft<2s, tpot<40ms, e2e<30s;
                        or any figure of kvtwin run --format=jsonl: output_tokens_per_s>1000. Repeatable: all hold
  --load=FIELD=LOW..HIGH  what there is to do: replay.population (sessions in flight, with
                        --set=replay.arrivals=fixed_population), replay.sessions_per_s (with poisson), ...
  --need=LOAD           at which the promises must hold
  --vary=FIELD=VALUES   a choice, as in kvtwin sweep: lists and steps. Repeatable: every combination
  --set=FIELD=VALUE     of all candidates
  --loss=FIELD=VALUE:PERCENT  what a choice costs in quality, where you know it; for the Pareto front
  --quality=FILE        quality.csv of kvtwin evaluate: what formats cost there (points of right answers)
  --seeds=N             the answer must hold with so many (3)
  --allow-roofline      also where kernels were not measured; else such candidates are refused
  --out=DIR             runs are kept there and found again (out/plan)
  --jobs=N --format=table|json|jsonl --quiet

Exit status 1 if no candidate holds; 2 if none was judged, because no candidate has measured kernels.
)";

constexpr char kValidate[] =
    R"(How far a simulation can be trusted: a scenario really run, beside what the simulator says of it.

  kvtwin validate scenarios/suites/validation/mixed.textproto --out=out/validate       on a machine with the GPU
  kvtwin validate scenarios/suites/validation/*.textproto --recorded=tests/golden/h200   from what was recorded there

  SCENARIO...           scenarios; their cost.profile is what kvtwin calibrate device wrote of that GPU
  --out=DIR             run them here, keep DIR/SCENARIO/REPEAT/{log,run}.binpb and DIR/validation.json
  --recorded=DIR        read such a folder instead; needs no GPU
  --repeats=N           real runs of each scenario (3)
  --backend=cuda|cpu      what really runs (cuda)
  --clock=wall|virtual  of it (wall); virtual compares what values decide, in the same times
  --set=FIELD=VALUE     change a field of the scenarios; may be repeated
  --known=FILE          deviations that are known: listed, not counted (traces/proto/validation.proto)
  --baseline=FILE       an earlier validation.json: exit 1 if anything is worse by a tenth, or decisions differ
  --part                FILE may be of more scenarios than these
  --details=FILE        every step and copy with its price, as CSV
  --format=table|json   what is printed
  --quiet               no progress on stderr

Three answers for each scenario: does the policy, replayed on the real log, decide the same; what each recorded
step and copy should have taken by the cost model, beside what it took; and the scenario simulated from
scratch, beside the real runs and their spread. Exit status 1: decisions differ, or a figure is outside its limit.
)";

constexpr char kReport[] = R"(Runs and sweeps as one page that needs nothing else.

  kvtwin report out/run-3f0c out/run-77ab --out=report.html

  DIR                   folders of kvtwin run, sweep, import, validate or evaluate; several runs are shown side
                        by side. A validation.json or quality.csv may stand for its folder
  --out=FILE            .html: a page with plots, to be opened from disk; .md: tables, for a pull request
)";

constexpr char kImport[] =
    R"(A real server's run, to stand beside ours in a report; or kernel times, to price steps with.

  kvtwin import vllm-inf-qps.json --out=out/real
  kvtwin report out/real out/run-3f0c --out=report.html
  kvtwin compare out/run-3f0c out/real/requests.jsonl
  kvtwin import vidur/a100 --format=vidur --model=llama-3.1-8b --out=profiles/a100
  kvtwin run SCENARIO --set=cost.profile=profiles/a100

  FILE                  the result of vLLM's or SGLang's serving benchmark with single requests (--save-detailed,
                        --output-details), AIPerf's profile_export.jsonl, or the text of vLLM's /metrics;
                        or a folder with mlp.csv and attention.csv of Vidur's profiling
  --out=DIR             run.binpb, requests.csv and requests.jsonl of it
  --format=auto         or bench, aiperf, prometheus, vidur
  --run=N               bench: which of a file's results, from 0; the last if it is not given
  --before=FILE         prometheus: an earlier scrape, whose counts are taken off
  --seconds=S           prometheus: how long it ran, for rates
  --name=TEXT           what the report calls it
  --model=MODEL         vidur: whose rows to take (kvtwin list models)
  --gpu=TEXT            vidur: what they were measured on
  --force               replace another result, or other kernel times, in --out
)";

constexpr char kList[] = R"(List what there is to choose from.

  kvtwin list policies

  WHAT                  policies, models, devices, nodes, scenarios, presets or formats
)";

}  // namespace

std::vector<std::string> usual_words(std::vector<std::string> words) {
  std::replace(words.begin(), words.end(), std::string("-h"), std::string("--help"));
  if (words.empty()) return words;
  if (words.front() == "version" || words.front() == "-V") words.front() = "--version";
  if (words.front() == "help") {
    words.erase(words.begin());
    words.push_back("--help");
  }
  return words;
}

std::string help_text(const std::string& command) {
  if (command.empty()) return kMain;
  if (command == "run") return kRun;
  if (command == "replay") return kReplay;
  if (command == "compare") return kCompare;
  if (command == "evaluate") return kEvaluate;
  if (command == "explain") return kExplain;
  if (command == "inspect-policy") return kInspectPolicy;
  if (command == "sweep") return kSweep;
  if (command == "plan") return kPlan;
  if (command == "report") return kReport;
  if (command == "import") return kImport;
  if (command == "validate") return kValidate;
  if (command == "list") return kList;
  return "";
}

}  // namespace kvtwin
