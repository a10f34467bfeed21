#include "engine/cuda/cuda_engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <string>
#include <utility>

#include "engine/base/check.h"
#include "engine/cuda/cuda_forward.h"
#include "engine/cuda/device/cuda_check.h"
#include "engine/cuda/device/step_graphs.h"
#include "engine/cuda/paged_cache.h"
#include "kernels/dense/dense_cuda.h"

namespace kvtwin::cuda {
namespace {

using Clock = std::chrono::steady_clock;

Duration since(Clock::time_point start) {
  return {std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count()};
}

}  // namespace

Result<void> check_gpu() {
  int devices = 0;
  const cudaError_t error = cudaGetDeviceCount(&devices);
  if (error != cudaSuccess || devices == 0) {
    cudaGetLastError();
    return make_error({}, fmt::format("there is no CUDA GPU here ({})",
                                      error != cudaSuccess ? cudaGetErrorString(error) : "none was found"));
  }
  if (kernels_run_here() == cudaSuccess) return {};
  cudaGetLastError();
  cudaDeviceProp found{};
  cudaGetDeviceProperties(&found, 0);
  return make_error({},
                    fmt::format("this build has no kernels for {} (compute capability {}.{})", found.name,
                                found.major, found.minor),
                    "configure with -DKVTWIN_CUDA_ARCHITECTURES=... for it");
}

DeviceModel::DeviceModel(std::unique_ptr<DeviceWeights> weights) : weights_(std::move(weights)) {}
DeviceModel::~DeviceModel() = default;

Result<std::unique_ptr<DeviceModel>> DeviceModel::make(const ModelWeights& weights) {
  const LlmSpec& llm = weights.llm();
  if (llm.head_dim % 8 != 0 || llm.head_dim > 256 || (llm.head_dim > 64 && llm.head_dim % 64 != 0)) {
    return make_error({}, fmt::format("heads of {} numbers are not computed on CUDA", llm.head_dim),
                      "8 to 64 in steps of 8, 128, 192 and 256 are; or --backend=cpu");
  }
  Result<std::unique_ptr<DeviceWeights>> made = DeviceWeights::make(weights);
  if (!made) return tl::unexpected<Error>(made.error());
  return std::unique_ptr<DeviceModel>(new DeviceModel(std::move(*made)));
}

struct CudaEngine::Parts {
  Parts(const CudaEngineConfig& given, const DeviceModel* model, const cpu::TokenIds* given_ids,
        OwnedCache given_cache)
      : config(given),
        llm(model->weights().llm()),
        ids(given_ids),
        tokens(given_ids, given.decoding, given.end_tokens),
        graphs(given.log == nullptr && !given.issued ? given.graphs_max : 0),
        cache(std::move(given_cache)) {}
  ~Parts();

  Result<void> make(const DeviceModel* model);
  void add_tokens(const PlanEntry& entry);
  StepStream on_stream() { return {compute_stream, timer.get()}; }
  DeviceRows compute();
  void sample_padding();
  void prepare_graph(uint32_t form, uint32_t size);
  void log_step(StepId step, const DeviceRows& on_device);
  void warm_up();
  void start(const StartTransfer& transfer);

  // A copy on its way.
  struct Copy {
    cudaEvent_t begin = nullptr, end = nullptr;
  };

  const CudaEngineConfig config;
  const LlmSpec& llm;
  const cpu::TokenIds* const ids;
  cpu::RequestTokens tokens;
  // Copies to the GPU and from it have a stream each: both directions of PCIe at once.
  cudaStream_t compute_stream = nullptr, copy_in = nullptr, copy_out = nullptr;
  StepList issued_list;
  std::unique_ptr<OperationTimer> timer;
  std::unique_ptr<CudaForward> forward;
  StepGraphs graphs;
  OwnedCache cache;
  RowsUpload upload;
  std::map<TransferId, Copy> copies;
  // Of the step at hand.
  std::vector<PlanEntry> entries;
  StepRows rows;
  Clock::time_point started;
  Duration issued{};
  std::vector<Sample> samples;
  uint32_t sampled_padding = 0;
  uint64_t tokens_computed = 0;
};

CudaEngine::Parts::~Parts() {
  cudaDeviceSynchronize();  // nothing may be freed under work in flight
  for (const auto& [id, copy] : copies) cudaEventDestroy(copy.begin), cudaEventDestroy(copy.end);
  timer.reset();
  for (const cudaStream_t stream : {compute_stream, copy_in, copy_out}) {
    if (stream != nullptr) cudaStreamDestroy(stream);
  }
}

Result<void> CudaEngine::Parts::make(const DeviceModel* model) {
  for (cudaStream_t* stream : {&compute_stream, &copy_in, &copy_out}) {
    if (Result<void> ok =
            check(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking), "cudaStreamCreate", "");
        !ok)
      return ok;
  }
  timer = std::make_unique<OperationTimer>(config.log != nullptr, config.issued ? &issued_list : nullptr,
                                           compute_stream);
  uint32_t rows_max = config.rows_max;
  for (const uint32_t size : config.row_sizes) rows_max = std::max(rows_max, size);
  Result<std::unique_ptr<CudaForward>> made_forward =
      CudaForward::make(&model->weights(), {rows_max, config.samples_max});
  if (!made_forward) return tl::unexpected<Error>(made_forward.error());
  forward = std::move(*made_forward);
  if (cache == nullptr) {
    Result<OwnedCache> made_cache = PagedCache::make(
        {config.page_tokens, config.pages_gpu, config.pages_host, rows_max, config.poison}, &llm);
    if (!made_cache) return tl::unexpected<Error>(made_cache.error());
    cache = std::move(*made_cache);
  }
  Result<RowsUpload> made_upload = RowsUpload::make(uint64_t{4} << 20);
  if (!made_upload) return tl::unexpected<Error>(made_upload.error());
  upload = std::move(*made_upload);
  cache->serve({.forward = forward.get(),
                .token = [this](RequestId request, uint32_t at) { return tokens.input(request, at); },
                .session = [this](RequestId request) { return ids->session(request); },
                .prompt_tokens = [this](RequestId request) { return ids->prompt_tokens(request); },
                .output_tokens = [this](RequestId request) { return ids->output_tokens(request); }});
  if (config.pages_gpu > 0) warm_up();
  return {};
}

void CudaEngine::Parts::add_tokens(const PlanEntry& entry) {
  for (uint32_t position = entry.context; position < entry.context + entry.stored(); ++position) {
    rows.tokens.push_back(tokens.input(entry.request, position));
    KVT_CHECK(rows.tokens.back() < llm.vocab);
  }
  if (entry.samples) rows.sampling.push_back(static_cast<uint32_t>(rows.tokens.size()) - 1);
}

// Everything is started without waiting; the one wait is for the sampled tokens.
DeviceRows CudaEngine::Parts::compute() {
  started = Clock::now();
  timer->begin(Operation::kUpload);
  const DeviceRows on_device = upload.send(rows, compute_stream);
  const auto start_layers = [&] { forward->run(on_device, cache.get(), on_stream()); };
  StepGraphKey graph_key{on_device, {}};
  if (cache->repeats(&graph_key)) {
    graphs.run(graph_key, compute_stream, cache->side_streams(), start_layers);
  } else {
    start_layers();
  }
  timer->end();
  issued = since(started);
  must(cudaStreamSynchronize(compute_stream), "step", 0, [&] {
    return fmt::format("{} rows, {} decode and {} chunk sequences, {} other rows, {} samples", on_device.rows,
                       on_device.decodes_count, on_device.chunks_count, on_device.other_rows,
                       on_device.samples);
  });
  return on_device;
}

void CudaEngine::Parts::log_step(StepId step, const DeviceRows& on_device) {
  if (config.log == nullptr) return;
  const auto decodes = std::count_if(rows.decodes.begin(), rows.decodes.end(),
                                     [](const DecodeSequence& one) { return one.tokens > 0; });
  config.log->add(config.engine, {.step = step,
                                  .rows = on_device.rows - rows.padding,
                                  .samples = on_device.samples - sampled_padding,
                                  .decode_rows = static_cast<uint32_t>(decodes) / llm.kv_heads,
                                  .decode_entries = rows.decode_entries,
                                  .chunk_entries = rows.chunk_entries,
                                  .issued = issued,
                                  .ended = since(started),
                                  .times = timer->times({})});
}

// What comes up for the first time is slow: kernels are loaded, cuBLASLt chooses. So every number of rows
// runs once before the first step, on a page that no request has yet. Only steps of decodes replay graphs,
// and they have at most one row for each request: sizes above the smallest one with room for all get no
// graph.
void CudaEngine::Parts::warm_up() {
  std::vector<uint32_t> sizes = config.row_sizes;
  if (sizes.empty()) sizes = {1, config.rows_max};
  for (const uint32_t size : sizes) {
    rows.clear();
    rows.tokens.assign(size, 0);
    cache->warm_up(size, on_stream(), &rows);
    for (uint32_t i = 0; i < std::min(size, config.samples_max); ++i) rows.sampling.push_back(i);
    compute();
  }
  const auto last = std::lower_bound(config.row_sizes.begin(), config.row_sizes.end(), config.samples_max);
  const auto end = last == config.row_sizes.end() ? last : last + 1;
  if (config.log == nullptr && config.graphs_max > 0) {
    for (uint32_t form = 0; form < cache->padded_forms(); ++form) {
      // The largest first: what grows with the size, and moves then, is there for the others.
      for (auto size = end; size != config.row_sizes.begin();) prepare_graph(form, *--size);
    }
  }
  if (config.log != nullptr) timer->times({});  // their times are not wanted
}

// Rows of padding are sampled too, because the number of sampled rows is a launch parameter.
void CudaEngine::Parts::sample_padding() {
  sampled_padding = 0;
  if (rows.padding == 0) return;
  const auto last = static_cast<uint32_t>(rows.positions.size()) - 1;
  const size_t sampled = rows.sampling.size();
  rows.sampling.resize(std::max(sampled, std::min(rows.positions.size(), size_t{config.samples_max})), last);
  sampled_padding = static_cast<uint32_t>(rows.sampling.size() - sampled);
}

void CudaEngine::Parts::prepare_graph(uint32_t form, uint32_t size) {
  rows.clear();
  rows.tokens.assign(size, 0);
  cache->fill_up(form, size, on_stream(), &rows);
  sample_padding();
  const DeviceRows on_device = upload.send(rows, compute_stream);
  StepGraphKey graph_key{on_device, {}};
  const auto start_layers = [&] { forward->run(on_device, cache.get(), on_stream()); };
  start_layers();  // loads the kernels that only this form has
  if (cache->repeats(&graph_key))
    graphs.prepare(graph_key, compute_stream, cache->side_streams(), start_layers);
  // Side streams still read the lists, too.
  must(cudaDeviceSynchronize(), "graphs of captured sizes");
}

void CudaEngine::Parts::start(const StartTransfer& transfer) {
  KVT_CHECK(transfer.source.size() == transfer.target.size());
  const bool concurrent = config.concurrent_copies;
  // Steps wait for what is before them on their own stream.
  const cudaStream_t copies_go = transfer.target_tier == Tier::kGpu ? copy_in : copy_out;
  const cudaStream_t stream = concurrent ? copies_go : compute_stream;
  Copy copy;
  if (concurrent) {
    must(cudaEventCreate(&copy.begin), "cudaEventCreate");
    must(cudaEventCreate(&copy.end), "cudaEventCreate");
    must(cudaEventRecord(copy.begin, stream), "cudaEventRecord");
  }
  cache->copy_all(transfer.source, transfer.target, stream);
  if (!concurrent) return;
  must(cudaEventRecord(copy.end, stream), "cudaEventRecord");
  copies[transfer.transfer] = copy;
}

void DeleteCache::operator()(KvCache* cache) const { delete cache; }

CudaEngine::CudaEngine(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
CudaEngine::~CudaEngine() = default;

Result<std::unique_ptr<CudaEngine>> CudaEngine::make(const CudaEngineConfig& config, const DeviceModel* model,
                                                     const cpu::TokenIds* tokens, OwnedCache cache) {
  auto parts = std::make_unique<Parts>(config, model, tokens, std::move(cache));
  if (Result<void> ok = parts->make(model); !ok) return tl::unexpected<Error>(ok.error());
  return std::unique_ptr<CudaEngine>(new CudaEngine(std::move(parts)));
}

void CudaEngine::step(const LaunchStep& launch, uint32_t offset, DataOutcomes* values) {
  Parts& p = *parts_;
  KVT_CHECK(launch.engine == p.config.engine);
  KVT_CHECK(offset < launch.repeat);
  values->clear();
  p.rows.clear();
  p.samples.clear();
  p.entries.assign(launch.entries.begin(), launch.entries.end());
  for (PlanEntry& entry : p.entries) {
    entry.context += offset;
    p.add_tokens(entry);
  }
  p.issued_list.clear();
  p.cache->begin(launch, offset, p.entries, p.on_stream(), &p.rows);
  p.tokens_computed += p.rows.tokens.size();
  p.sample_padding();
  p.rows.tokens.resize(std::max(p.rows.tokens.size(), size_t{launch.tokens_padded}), 0);
  const StepId step{raw(launch.step) + offset};
  // Passes of probe tokens, which the cache runs, may be all of a step.
  DeviceRows on_device;
  p.started = Clock::now(), p.issued = {};
  if (!p.rows.tokens.empty()) on_device = p.compute();
  p.cache->end(launch, offset, p.entries, p.on_stream(), values);
  p.log_step(step, on_device);
  if (p.config.issued) p.config.issued(launch, offset, p.issued_list);
  for (const PlanEntry& entry : p.entries) {
    if (!entry.samples) continue;
    const uint32_t token = p.forward->sampled()[p.samples.size()];
    p.samples.push_back({entry.request, entry.context + entry.tokens, token});
    if (p.tokens.sampled(entry, token)) values->eos.push_back(entry.request);
  }
}

void CudaEngine::notify(const Command& command) {
  if (const auto* transfer = std::get_if<StartTransfer>(&command)) parts_->start(*transfer);
  parts_->cache->notify(command);
  if (const auto* drop = std::get_if<DropRequestState>(&command)) parts_->tokens.dropped(*drop);
}

void CudaEngine::force_outcomes(const DataOutcomes* given) { parts_->cache->force_outcomes(given); }

Duration CudaEngine::copy_time(TransferId transfer) {
  const auto found = parts_->copies.find(transfer);
  KVT_CHECK(found != parts_->copies.end());
  const Parts::Copy copy = found->second;
  parts_->copies.erase(found);
  float ms = 0;
  must(cudaEventSynchronize(copy.end), "copy of pages");
  must(cudaEventElapsedTime(&ms, copy.begin, copy.end), "cudaEventElapsedTime");
  cudaEventDestroy(copy.begin), cudaEventDestroy(copy.end);
  return {static_cast<int64_t>(double{ms} * 1e6)};
}

std::span<const CudaEngine::Sample> CudaEngine::samples() const { return parts_->samples; }

std::vector<float> CudaEngine::logits() const {
  std::vector<float> out(parts_->samples.size() * parts_->llm.vocab);
  must(cudaMemcpy(out.data(), parts_->forward->logits(), out.size() * sizeof(float), cudaMemcpyDeviceToHost),
       "copy of logits", out.size() * sizeof(float));
  return out;
}

uint64_t CudaEngine::tokens_computed() const { return parts_->tokens_computed; }
uint64_t CudaEngine::graph_replays() const { return parts_->graphs.replays(); }
Duration CudaEngine::issued() const { return parts_->issued; }
uint64_t CudaEngine::samples_digest() const { return parts_->tokens.digest(); }

}  // namespace kvtwin::cuda
