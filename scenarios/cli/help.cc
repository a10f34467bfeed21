#include <algorithm>

#include "scenarios/cli/cli.h"

namespace kvtwin {
namespace {

constexpr char kMain[] = R"(kvtwin: what would another KV-cache policy, GPU or trace have done?

  kvtwin run coding_agents_small                         run one scenario; print a summary
  kvtwin replay out/run-3f0c                             check that a recorded run repeats its decisions
  kvtwin sweep SCENARIO --vary=limits.requests_max=16..256*2 --out=out/sweep
                                                         run a scenario at many points
  kvtwin plan SCENARIO --slo='ttft_p99<2s' --load=FIELD=LOW..HIGH --need=LOAD
                                                         find the cheapest configuration that meets the SLOs
  kvtwin report out/run-3f0c out/sweep --out=report.html write one page with plots, for use without a network
  kvtwin compare out/run-3f0c out/run-77a1               compare two runs, or a run with a server's request log
  kvtwin trace import azure conv.csv --out=conv.trace    import a trace; also inspect, cut, export, synth
  kvtwin model import config.json --name=mine            import a model; also show, init
  kvtwin device new my-gpu --base=h100                   start the files of a GPU that is not there; also check
  kvtwin explain methods/freekv --step=20                show one step: operations, critical path
  kvtwin calibrate policy budgets search_tiny            measure budgets, bits and profiles from values
  kvtwin calibrate device --out=mine.textproto           measure this GPU's step times, for validate and run
  kvtwin validate suites/validation/mixed --out=out/v    compare real runs with their simulation
  kvtwin inspect-policy search_tiny                      measure what scorers retain, by budget
  kvtwin evaluate quality/snapkv --out=out/quality       count correct answers from retained KV
  kvtwin import vllm-result.json --out=out/real          import a real server's run, for report and compare
  kvtwin observe http://localhost:8000 --trace=T --out=D drive a live server with a trace and measure it
  kvtwin serve coding_agents_small --port=8000           an OpenAI-compatible server with the simulation's times
  kvtwin doctor                                          what this machine can do, and what the rest would take
  kvtwin list policies                                   also models, nodes, scenarios, fields, metrics, formats

Type kvtwin COMMAND --help for a command's options, kvtwin version for the version. Options are written
--name=value. SCENARIO is a file or the name of a shipped scenario (kvtwin list scenarios).
Exit status: 0 done; 1 the answer is no; 2 invalid input; 3 the environment failed, or output cannot be
written; 4 this build or this machine lacks the backend.
)";

constexpr char kRun[] = R"(Run one scenario and print a summary.

  kvtwin run mooncake_conversation
  kvtwin run weka_h200 --set=memory.host_bytes=1TB --set=replay.population=64
  kvtwin run search_tiny --backend=cpu --clock=wall

  SCENARIO              a .textproto file (traces/proto/scenario.proto documents its fields), or the name of a
                        shipped scenario (kvtwin list scenarios)
  --out=DIR             folder of the result; default: out/run- and the fingerprint of all inputs
  --format=table        or json, jsonl, csv: one flat record
  --seed=N              the same as --set=seed=N
  --set=FIELD=VALUE     change a field, as in --set=limits.requests_max=128; may be repeated. Numbers take
                        units: 500GB, 80GiB, 5ms, 90%, 8k (kvtwin list fields names each field's). It is an error
                        to set a field that the other settings leave unread. A path is relative to the
                        working directory, or to the scenario file if it does not exist there
  --allow-unread        allow fields that are not read
  --force               replace a result of other inputs in --out
  --backend=BACKEND     sim: times are simulated, no values are computed; cpu: computes values in fp32;
                        cuda: computes values on the GPU, in bf16
  --clock=CLOCK         of backends cpu and cuda. wall: measured step times; virtual: step times of the cost
                        model
  --record              also write the log of decisions (log.binpb), for kvtwin replay
  --timeline=FROM..TO   write a timeline of this time (0..30s, 500ms..2min), for ui.perfetto.dev (timeline.perfetto-trace) and
                        for chrome://tracing and reports (timeline.json)
  --prefix-bound        also report the prefix reuse of Belady's order, an upper bound
  --no-write            print only, write no files
  --quiet               no progress on stderr

Result files: run.binpb, requests.csv, tools.csv, requests.jsonl and scenario.resolved.textproto. They replace
those of an earlier run. Same inputs give the same bytes, unless times are measured (--clock=wall).
)";

constexpr char kReplay[] =
    R"(Repeat the decisions of a recorded run without a backend, and check that they are the same.

  kvtwin run coding_agents_small --record --out=out/a
  kvtwin replay out/a

  RUN_DIR               the result of a run with --record
  --format=table        or json, jsonl, csv
  --quiet               no progress on stderr

Exit status: 1 if decisions differ, with the first difference; 2 if log and result are of different runs.
)";

constexpr char kCompare[] = R"(Compare two runs, or a run with a real server's request log, metric by metric.

  kvtwin compare out/before out/after --limit=ttft_p99=5
  kvtwin compare out/run-3f0c vllm/requests.jsonl --skip=30

  RUN_DIR               the result of a run
  OTHER                 the folder of another run, or a server's request log. JSON lines: request_id,
                        input_toks, output_toks, queued_ts, first_token_ts, last_token_ts, and arrival_time
                        if the client's sending is known on the same clock
  --skip=N              leave out the first N requests of the log, if they were used for calibration
  --limit=METRIC=PCT    exit with 1 if a difference is larger, as in --limit=ttft.mean=1.0; may be repeated.
                        +PCT counts an increase alone, -PCT a decrease: --limit=ttft_p99=+5. Of two runs any
                        metric that kvtwin list metrics prints
  --format=table        or json, jsonl, csv. Of two runs they have all metrics, the table those asked for first

Two runs: settings that differ, metrics as kvtwin run prints them, and the latencies of the same requests.
With a log, requests match by request_id if the run has all of the log's, else by order. TTFT and latency count from
arrival_time (as a client sees them, front end included) if both sides have it, else from queued_ts on both sides, and
percentiles interpolate as numpy's do.
)";

constexpr char kExplain[] =
    R"(Price one step of a scenario's engine, operation by operation: the critical path, the exposed time of
transfers, and the slack of each operation.

  kvtwin explain methods/freekv --step=20 --layers=0..2 --out=step.dot
  kvtwin explain methods/arkvale --shape=decodes=4,context=32768

  SCENARIO              as for kvtwin run; always priced by the simulated backend
  --step=N              the Nth single step of the engine in the run, from 0
  --shape=SHAPE         instead of --step: a step of equal requests, the third of three. decodes=N,context=TOKENS
                        and chunks=N,chunk_tokens=TOKENS,chunk_context=TOKENS; compress=1: each chunk ends with
                        a compression
  --engine=N            engine of --step; default 0
  --out=FILE            the graph for Graphviz: streams as clusters, the critical path in red, predicated
                        operations dashed, those that do not run dotted, background ones rounded
  --layers=FROM..TO     layers of the graph; default: all
  --format=table        or json, jsonl, csv: one record per operation. Its field `starts` names the operations that the
                        CUDA engine starts for it
  --set=FIELD=VALUE     change a field; may be repeated

The slack of background operations assumes an equal next step. Copies are priced without contention for links.
)";

constexpr char kInspectPolicy[] =
    R"(Run prompts of a scenario's trace through its model on the CPU engine, and compare the entries that
scorers retain with the choice of the response's own queries, and with attention over the whole context.

  kvtwin inspect-policy search_tiny --scorers=oracle,snapkv,random --budgets=64,256
  kvtwin inspect-policy search_tiny --set=cpu.checkpoint=llama --format=csv --out=hits.csv

  SCENARIO              supplies model, weights and trace; its policies are ignored
  --scorers=A,B         names of kvtwin list policies, with their published options (the scenario's own scorer
                        with the scenario's); oracle: the response's queries choose
  --budgets=N,M         KV entries per head
  --sinks=N --window=N  entries of these that are always retained; default 0
  --response=N          tokens of each output whose queries choose; default 64
  --error-tokens=N      of these, tokens whose attention is compared; default 8
  --contexts=N          prompts of the trace, evenly spread; default 16
  --context-min=N --context-max=N   tokens of a prompt; others are left out; default 1 and 4096
  --format=table        or json, jsonl, csv: one record per scorer, budget and layer
  --out=FILE            instead of standard output
  --set=FIELD=VALUE     change a field; may be repeated

hit rate: of the KV entries that the response chooses, the fraction that the scorer retains, mean over layers,
heads and contexts; +-: half of its 95 % interval, 1.96 standard errors over contexts. random: the hit rate by
chance. error: relative L2 error of attention's output.
)";

constexpr char kEvaluate[] =
    R"(Ask a trained model questions under many policy sets and budgets, and count correct answers.

  kvtwin evaluate scenarios/quality/*.textproto --questions=500 --out=out/quality
  kvtwin evaluate quality/full --tasks=needle,multi_hop --out=out/full --format=csv

  SCENARIO...           policy sets: scenario files with a model and its checkpoint; their traces are ignored
  --tasks=A,B           names of kvtwin trace make-task --list
  --budgets=N,M         KV entries per head, for policy sets that have a budget: budget_options.kv_entries if the
                        file sets it, else ratio (of the mean prompt), or retrieval_options.budget_tokens
  --questions=N         fewest scored questions per cell (a policy set with one budget on one task); default 100
  --tokens=N            tokens per session, default 384; --per-session=N questions per session, default 4;
                        --seed=N of the test split, default 1
  --drop-turns          a turn's question and answer leave the context when it ends
  --out=DIR             cells/ has a file per cell; existing cells are not computed again. Also writes
                        quality.csv and quality.json
  --backend=cpu         cuda,cpu: on the GPU if it computes the policy set, else on the CPU
  --batch=N             concurrent sessions, default 8; limits and pages grow with it. More than 8 pays on a GPU
  --jobs=N              concurrent processes; N,M with --backend=cuda,cpu: N for the GPU and M for the CPU
  --shard=I/N           every N-th cell from the I-th on: run N processes on one DIR, then once without --shard
  --collect=DIR         add the cells of another evaluation's folder or quality.csv; may be repeated. It needs no
                        SCENARIO, but the same model and sessions. Of equal cells, the one with more questions
                        stays
  --throughput=LOAD     also simulate a scenario with each policy set, and its budget as the same fraction of a
                        prompt: column simulated_tokens_per_s
  --sets-in=DIR         folder of the collected cells' policy sets, for --throughput
  --paired=POLICY       also compare each policy set with this one, question by question: answers gained and lost,
                        and the probability of such a difference by chance (McNemar's exact test, two-sided)
  --format=table        or json, jsonl, csv: one record per cell
  --set=FIELD=VALUE     of every cell; may be repeated. It is an error to set a field that no cell reads
  --allow-unread        allow fields that are not read
  --quiet               no line per cell on stderr

An answer is correct if all its tokens are. [low high]: 95 % interval (Wilson). Decoding is forced, which finds
the same answers correct as greedy decoding. A refused policy set is a row with the reason. Exit status: 1 if a
row is refused, 2 if all are.
)";

constexpr char kSweep[] =
    R"(Run one scenario at many points of its fields and store every result. A killed sweep continues where it
stopped.

  kvtwin sweep coding_agents_small --vary=limits.requests_max=4..64*2 --vary=seed=1,2,3 --out=out/sweep

  SCENARIO              a scenario; or FILE.sweep.textproto, which holds these arguments
                        (traces/proto/sweep.proto) and to which the command line adds
  --vary=FIELD=VALUES   one axis; may be repeated. 1,2,5: these values; 1..8*2: 1,2,4,8; 1..7+3: 1,4,7;
                        sampled: 1..8 uniformly (whole numbers if both ends are), 0.01..10* on a log scale.
                        With units: 100GB..800GB*2
  --out=DIR             points/KEY holds each result, KEY being the fingerprint of its inputs; index.sqlite holds
                        all. A folder belongs to one sweep; default: out/sweep- and the fingerprint of scenario,
                        axes and --set
  --force               use the folder of another sweep (scenario, axes or --set): its points stay, but
                        index.sqlite leaves them out
  --set=FIELD=VALUE     of every point
  --samples=N           sample N points instead of running every combination
  --sampler=sobol       or random
  --seed=N              of the sample
  --halve=METRIC:min    successive halving, or :max: all points at the first rung, the best ones at the next
  --rungs=FIELD=VALUES  cheapest first, as in --rungs=replay.sessions_max=20,100,692
  --keep-one-of=3       one of this many points continues to the next rung
  --jobs=N              concurrent processes; default: one per core
  --launcher=slurm      run an array job of --tasks=N shards on --jobs=C CPUs each, wait for it and collect.
                        --sbatch=--partition=x is passed to sbatch; may be repeated
  --shard=I/N           every N-th point from the I-th on (from 0), for other schedulers: use the same DIR, or
                        copy points/ together; then the command without --shard collects
  --format=table        or csv, json, jsonl: all metrics of all points
  --columns=A,B         metrics of the table (kvtwin list metrics)
  --dry-run             run nothing, show the existing results
  --quiet               no progress on stderr

A point that fails is a row with its error, and runs again next time. Exit status 1 if there is one.
)";

constexpr char kPlan[] =
    R"(Find the cheapest configuration that meets service level objectives (SLOs), its margin, and what breaks
first.

  kvtwin plan coding_agents_small --slo='ttft_p99<2s' --slo='tpot_p95<40ms'
              --load=replay.population=1..480 --need=200 --set=replay.arrivals=fixed_population
              --set=replay.replicas=20 --vary=hardware.node=h200,h100 --vary=engines.count=1..8*2
              --set=hardware.nodes=0 --allow-roofline

  SCENARIO              a scenario
  --slo=SLO             ttft_p99<2s, tpot_p95<40ms, session_p90<10min, e2e_mean<1min, itl_p99<100ms;
                        goodput>=95% with conditions on each request: ttft<2s, tpot<40ms, e2e<30s;
                        or any figure of kvtwin run --format=jsonl: output_tokens_per_s>1000. May be repeated:
                        all must hold
  --load=FIELD=LOW..HIGH  the load: replay.population (sessions in flight, with
                        --set=replay.arrivals=fixed_population), replay.sessions_per_s (with poisson), ...
  --need=LOAD           load at which the SLOs must hold
  --vary=FIELD=VALUES   a choice, as in kvtwin sweep: lists and steps. May be repeated: every combination
  --set=FIELD=VALUE     of all candidates
  --loss=FIELD=VALUE:PERCENT  known quality loss of a choice, for the Pareto front
  --quality=FILE        quality.csv of kvtwin evaluate: quality losses of formats (points of correct answers)
  --price=NODE=USD      your price of one GPU of a node per hour, instead of the catalog's: --price=h200-x8=2.40.
                        May be repeated
  --seeds=N             number of seeds with which the answer must hold; default 3
  --allow-roofline      also judge candidates without measured kernels, which are refused otherwise
  --out=DIR             folder of the runs, which a later plan finds again; default out/plan
  --jobs=N --format=table|json|jsonl --quiet

Exit status: 1 if no candidate holds; 2 if none was judged, because none has measured kernels.
)";

constexpr char kValidate[] =
    R"(Compare real runs of a scenario with its simulation.

  kvtwin validate suites/validation/mixed --out=out/validate      on a machine with the GPU
  kvtwin validate scenarios/suites/validation/*.textproto --recorded=tests/golden/h200   from recordings

  SCENARIO...           scenarios; their cost.profile is the output of kvtwin calibrate device on that GPU
  --out=DIR             run them here, write DIR/SCENARIO/REPEAT/{log,run}.binpb and DIR/validation.json
  --recorded=DIR        read such a folder instead; needs no GPU
  --repeats=N           real runs of each scenario; default 3
  --backend=cuda|cpu    backend of the real runs; default cuda
  --clock=wall|virtual  clock of the real runs; default wall. virtual compares decisions under equal times
  --set=FIELD=VALUE     change a field of the scenarios; may be repeated
  --known=FILE          known deviations, which are listed but not counted (traces/proto/validation.proto)
  --baseline=FILE       an earlier validation.json: exit with 1 if an error grows by a tenth, or decisions differ
  --part                the baseline may have more scenarios than these
  --details=FILE        every step and copy with its price, as CSV
  --format=table|json   format of the output
  --quiet               no progress on stderr

Three checks for each scenario: the policy, replayed on the real log, takes the same decisions; each recorded
step and copy is priced by the cost model and compared with its measured time; and the scenario, simulated from
scratch, is compared with the real runs and their spread. Exit status 1: decisions differ, or a figure is
outside its limit.
)";

constexpr char kReport[] = R"(Write runs and sweeps as one self-contained page.

  kvtwin report out/run-3f0c out/run-77ab --out=report.html

  DIR                   folders of kvtwin run, sweep, plan, import, validate or evaluate; several runs are
                        compared. A plan.json, validation.json or quality.csv may be given instead of its folder
  --slo='ttft_p99<2s'   judge runs and sweeps, in the syntax of kvtwin plan; repeat it. Without: by the SLOs of
                        the plans among the folders
  --out=FILE            .html: a page with plots; .md: tables, for a pull request
)";

constexpr char kImport[] =
    R"(Import a real server's run, for reports and comparisons; or kernel times, to price steps with.

  kvtwin import vllm-inf-qps.json --out=out/real
  kvtwin report out/real out/run-3f0c --out=report.html
  kvtwin compare out/run-3f0c out/real/requests.jsonl
  kvtwin import vidur/a100 --format=vidur --model=llama-3.1-8b --out=profiles/a100
  kvtwin run SCENARIO --set=cost.profile=profiles/a100

  FILE                  the result of vLLM's or SGLang's serving benchmark with single requests (--save-detailed,
                        --output-details), AIPerf's profile_export.jsonl, a server's request log as kvtwin compare
                        reads it, or the text of vLLM's /metrics; or a folder with mlp.csv and attention.csv of Vidur's profiling
  --out=DIR             receives run.binpb, requests.csv and requests.jsonl
  --format=auto         or bench, aiperf, requests, prometheus, vidur
  --run=N               bench: index of one of the file's results, from 0; default: the last
  --before=FILE         prometheus: an earlier scrape, whose counts are subtracted
  --seconds=S           prometheus: duration, for rates
  --name=TEXT           name of the run in reports
  --model=MODEL         vidur: model whose rows to read (kvtwin list models)
  --gpu=TEXT            vidur: GPU of the measurements
  --force               replace another result, or other kernel times, in --out
)";

constexpr char kExport[] =
    R"(Write a run as another tool's files.

  kvtwin export aiperf out/run-3f0c --out=out/for-aiperf
  aiperf plot --paths out/for-aiperf

  FORMAT                aiperf: profile_export.jsonl, profile_export_aiperf.json and profile_export_aiperf.csv
  RUN_DIR               folder of kvtwin run, import or observe, with requests.csv
  --out=DIR             receives the files
)";

constexpr char kObserve[] =
    R"(Drive a live OpenAI-compatible server (vLLM, SGLang, ...) with a trace, and record what it did.

  kvtwin observe http://localhost:8000 --trace=out/chat.kvtrace --out=out/real
  kvtwin compare out/run-3f0c out/real/requests.jsonl

  URL                   the server, with or without /v1
  --trace=FILE          a trace of any format that kvtwin trace import reads, or the name of a shipped one, as in
                        --trace=coding_agents_small
  --out=DIR             receives run.binpb, requests.csv and requests.jsonl, as kvtwin import writes them
  --model=NAME          one of the server's models; may be left out if it has one
  --endpoint=completions  prompts are token ids of the trace's lengths; chat: words, of about that many tokens
  --api-key-env=NAME    environment variable with the API key; default OPENAI_API_KEY
  --sessions=N          only the first N sessions of the trace
  --arrival-scale=X     arrivals times X: 0.5 is twice the rate, 0 all at once
  --speed=X             for kvtwin serve --speed=X: the trace's times pass X times as fast, and measured times
                        count X times as long; default 1
  --think-cap=SECONDS   longest think time; default: as recorded
  --timeout=SECONDS     longest time of a request; default 600
  --seed=N              content of the prompts; another seed avoids what the server has cached; default 1
  --stop-at-eos         let the model end outputs (ignore_eos, of vLLM and SGLang, is not sent)
  --force               replace another result in --out
  --quiet               no progress on stderr

Sessions run as recorded: a request is sent when those that it waits for have ended and its think time is over, with
the session's name as X-Session-Id. Prompts share the prefixes that they share in the trace. Failed requests are
counted and named on stderr; those that wait for them are not sent. SIGINT or SIGTERM stops it: what has ended is
written, with a note; a second signal ends it without files.
Exit status 1: a signal stopped it; 3: the server cannot be reached, or every request failed.
)";

constexpr char kServe[] =
    R"(Serve OpenAI's API with the times of a scenario's simulation: a stand-in for a server with GPUs.

  kvtwin serve coding_agents_small --port=8000
  curl -N localhost:8000/v1/chat/completions -d '{"stream":true,"messages":[{"role":"user","content":"Hi"}]}'

  SCENARIO              as for kvtwin run: model, hardware, engines, routing and policies are used. Its trace gives
                        answers to clients that name one of its sessions
  --host=ADDRESS        default 127.0.0.1: this machine only
  --port=N              default 8000; 0 takes a free one, which the first line of output names
  --speed=X             simulated seconds per second; default 1
  --model-name=NAME     the model's name for clients; default: the name of the scenario's model
  --output-tokens=N     of answers where neither max_tokens nor the trace gives a length; default 256
  --api-key-env=NAME    environment variable with a key that clients must send; default: none is asked for
  --max-streams=N       requests at once; further ones get status 429; default 4096
  --max-body=MIB        largest body of a request; default 64
  --stall=SECONDS       disconnect a client that reads nothing for so long, or sends nothing in the middle of a
                        request; default 120
  --grace=SECONDS       after SIGTERM or SIGINT, time for running requests to end; default 10. A second signal
                        ends the server at once
  --kv-events=ENDPOINT  publish KV events as vLLM does, at tcp://127.0.0.1:5557, say; further engines have
                        the next ports
  --kv-events-topic=T   topic of the events; default: empty
  --kv-events-layout=maps  events as vLLM 0.24 and later publish them; arrays: as earlier versions did
  --token-log=FILE      a CSV table of when each streamed token was due and was sent
  --set=FIELD=VALUE     change a field; may be repeated

Paths: /v1/chat/completions, /v1/completions, /v1/models, /health, /metrics (vLLM's names). Prompts of token ids are
exact; text counts one token per 4 bytes. Exit status 2: --host is not this machine's, or the policies have no KV
events; 3: the port cannot be used; 4: this build has no server.
)";

constexpr char kList[] = R"(List names that scenarios and commands take.

  kvtwin list policies

  WHAT                  policies, combinations, models, devices, nodes, scenarios, presets or formats;
                        fields: of scenarios, with type, default and meaning; metrics: names for --columns, --halve,
                        --slo and --limit; words: options of vLLM, SGLang and TensorRT-LLM, and the field of each
)";

constexpr char kDoctor[] =
    R"(Print what this build on this machine can do, and what it would take to do the rest.

  kvtwin doctor

It names the backends, this machine's GPU, its node of the catalog and its measured step times, and the next command
to try. Exit status 4 if even the simulator is missing.
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
  if (command == "export") return kExport;
  if (command == "observe") return kObserve;
  if (command == "serve") return kServe;
  if (command == "validate") return kValidate;
  if (command == "list") return kList;
  if (command == "doctor") return kDoctor;
  return "";
}

}  // namespace kvtwin
