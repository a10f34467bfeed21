// The operations that the simulator prices are those that the CUDA engine starts
// (docs/design/step-graph-and-prices.md#step-list).

#include "engine/steps/step_list.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/steps/step_graph_retrieval.h"
#include "tests/support/retrieval_names.h"
#include "tests/support/source_dir.h"
#include "tests/support/step_lists.h"

using namespace kvtwin;
using namespace kvtwin::testing;

namespace {

using Names = std::set<std::string>;

// Which of numbered operations waits for which, over two consecutive steps.
class Order {
 public:
  explicit Order(size_t count) : before_(count, std::vector<bool>(count, false)) {}
  void add(size_t cause, size_t effect) { edges_.push_back({cause, effect}); }
  const std::vector<std::pair<size_t, size_t>>& edges() const { return edges_; }
  // Operations in between count if they are always there. REQUIRES: no more add().
  void close(const std::vector<bool>& always) {
    for (const auto& [cause, effect] : edges_) before_[cause][effect] = true;
    for (size_t k = 0; k < before_.size(); ++k) {
      if (!always[k]) continue;
      for (auto& row : before_) {
        for (size_t j = 0; row[k] && j < row.size(); ++j) row[j] = row[j] || before_[k][j];
      }
    }
  }
  bool operator()(size_t cause, size_t effect) const { return before_[cause][effect]; }

 private:
  std::vector<std::pair<size_t, size_t>> edges_;
  std::vector<std::vector<bool>> before_;
};

Order order_of(const StepList& list) {
  const auto operations = list.operations();
  const size_t count = operations.size();
  Order out(2 * count);
  std::map<StreamKind, size_t> last;
  std::map<std::pair<Edge, uint16_t>, size_t> recorded;
  std::vector<size_t> required;
  for (size_t i = 0; i < 2 * count; ++i) {
    const ListedOperation& one = operations[i % count];
    if (const auto found = last.find(one.stream); found != last.end()) out.add(found->second, i);
    last[one.stream] = i;
    const auto event = recorded.find({one.after.edge, one.after.layer});
    if (event != recorded.end()) out.add(event->second, i);
    if (one.records) recorded[{one.records.edge, one.records.layer}] = i;
    // The host waits for the tokens before it starts the next step.
    if (i < count && one.required) required.push_back(i);
    if (i == count) {
      for (const size_t cause : required) out.add(cause, i);
    }
  }
  out.close(std::vector<bool>(2 * count, true));
  return out;
}

Order order_of(const StepGraph& graph) {
  const size_t count = graph.op_count();
  Order out(2 * count);
  std::vector<bool> always(2 * count);
  for (size_t i = 0; i < 2 * count; ++i) {
    const OpId id{static_cast<uint32_t>(i % count)};
    const size_t step = i / count * count;
    const Op& op = graph.op(id);
    always[i] = op.outcome == kAlways || graph.parts(id).empty();
    for (size_t before = 0; before < i; ++before) {
      if (graph.op(OpId{static_cast<uint32_t>(before % count)}).stream == op.stream) out.add(before, i);
    }
    for (const OpId cause : graph.causes(id)) out.add(index(cause) + step, i);
    if (step == 0) continue;
    for (const PortId port : graph.ports(id)) out.add(index(graph.fed_by(port)), i);
    // A step starts when the one before it has ended.
    for (size_t before = 0; before < count; ++before) {
      if (graph.op(OpId{static_cast<uint32_t>(before)}).required) out.add(before, i);
    }
  }
  out.close(always);
  return out;
}

// What a graph prices and what a list starts.
class Comparison {
 public:
  Comparison(const StepGraph& graph, const StepList& list)
      : graph_(graph), operations_(list.operations()), starts_(order_of(list)), prices_(order_of(graph)) {
    // Kind, layer, stream, and whether it is behind the layers.
    using Key = std::tuple<Operation, uint16_t, StreamKind, bool>;
    const auto key = [](const ListedOperation& one, bool behind) {
      return Key{one.kind, one.layer, one.stream, behind};
    };
    std::map<Key, std::vector<size_t>> prices, started;
    bool behind = false;
    for (uint32_t op = 0; op < graph.op_count(); ++op) {
      behind = behind || (graph.op(OpId{op}).layer != kNoLayer);
      const bool outside = graph.op(OpId{op}).layer == kNoLayer;
      for (const ListedOperation& part : graph.parts(OpId{op}))
        prices[key(part, behind && outside)].push_back(op);
    }
    behind = false;
    for (size_t i = 0; i < operations_.size(); ++i) {
      const bool outside = operations_[i].layer == kNoLayer;
      behind = behind || (!outside && operations_[i].kind != Operation::kRequantise);
      started[key(operations_[i], behind && outside)].push_back(i);
    }
    for (const auto& [one, places] : started) {
      const std::vector<size_t>& ops = prices[one];
      for (size_t i = 0; i < places.size(); ++i) {
        for (size_t k = 0; k < ops.size(); ++k) {
          if (places.size() == ops.size() && i != k) continue;  // norms: one for each product
          priced_as_[places[i]].push_back(ops[k]);
          parts_[ops[k]].push_back(places[i]);
        }
      }
    }
  }

  Names differences() {
    for (size_t i = 0; i < operations_.size(); ++i) streams(i);
    for (uint32_t op = 0; op < graph_.op_count(); ++op) {
      if (graph_.parts(OpId{op}).empty()) out_.insert("no operation is " + priced_name(op));
    }
    const size_t count = operations_.size();
    for (const auto& [cause, effect] : starts_.edges()) {
      if (!ordered(priced_as_, graph_.op_count(), prices_, cause, effect, count))
        out_.insert("unpriced: " + name(effect % count) + " after " + name(cause % count) +
                    later(effect / count - cause / count));
    }
    for (const auto& [cause, effect] : prices_.edges()) {
      const uint32_t ops = graph_.op_count();
      if (!ordered(parts_, count, starts_, cause, effect, ops))
        out_.insert("priced alone: " + priced_name(static_cast<uint32_t>(effect % ops)) + " after " +
                    priced_name(static_cast<uint32_t>(cause % ops)) + later(effect / ops - cause / ops));
    }
    return out_;
  }

 private:
  using Counterparts = std::map<size_t, std::vector<size_t>>;

  // Whether some counterparts of two operations are in this order, or none exist to be compared.
  static bool ordered(const Counterparts& of, size_t others, const Order& order, size_t cause, size_t effect,
                      size_t count) {
    const auto a = of.find(cause % count), b = of.find(effect % count);
    if (a == of.end() || b == of.end()) return true;
    for (const size_t x : a->second) {
      for (const size_t y : b->second) {
        const size_t from = x + cause / count * others, to = y + effect / count * others;
        if (from == to || order(from, to)) return true;
      }
    }
    return false;
  }

  static std::string later(size_t steps) { return steps == 0 ? "" : " of the step before"; }
  std::string name(size_t i) const {
    return std::string(name_of(operations_[i].kind)) + " (" + name_of(operations_[i].stream) + ")";
  }
  std::string priced_name(uint32_t op) const {
    const Op& one = graph_.op(OpId{op});
    return std::string(name_of(one.kind)) + " (" + graph_.streams()[static_cast<size_t>(one.stream)] + ")";
  }

  void streams(size_t i) {
    static const std::map<StreamKind, std::string> kPricedOn = {{StreamKind::kCompute, "compute"},
                                                                {StreamKind::kRecall, "h2d"},
                                                                {StreamKind::kOffload, "d2h"},
                                                                {StreamKind::kSelect, "select"}};
    const auto found = priced_as_.find(i);
    if (found == priced_as_.end()) {
      out_.insert("no price has " + name(i));
      return;
    }
    for (const size_t op : found->second) {
      const Op& one = graph_.op(OpId{static_cast<uint32_t>(op)});
      if (graph_.streams()[static_cast<size_t>(one.stream)] != kPricedOn.at(operations_[i].stream) ||
          one.required != operations_[i].required || one.layer != operations_[i].layer)
        out_.insert(name(i) + " is priced as " + priced_name(static_cast<uint32_t>(op)));
    }
  }

  const StepGraph& graph_;
  const std::span<const ListedOperation> operations_;
  const Order starts_, prices_;
  Counterparts priced_as_, parts_;  // by operation of the list, and of the graph
  Names out_;
};

RetrievalStepSpec priced(const NamedList& named) {
  const StepListSpec& list = named.spec;
  RetrievalStepSpec out;
  out.captures = named.captures, out.compresses = named.compresses;
  out.kind = list.attention.kind, out.speculation = list.attention.speculation;
  out.layers = list.layers, out.layers_dense = list.attention.layers_dense;
  out.converts = false;  // a kernel recalls
  return out;
}

std::string file_of(const std::string& name) {
  return source_dir() + "/tests/golden/operations/" + name + ".txt";
}

// What is priced otherwise than it is started. The prices of recalls are of the released code of the methods:
// a copy engine with one queue. Their choices for the next step wait for the query alone, where the CUDA
// engine's wait for the comparison of queries, and for attention. The host's part of a compression is work of
// the host alone; marks of new KV entries are captured with their append. Rows of prompts are priced with
// those of requests that choose pages, where the CUDA engine starts one part of the step behind the other.
Names known_differences(const NamedList& named) {
  const ListedAttention& attention = named.spec.attention;
  Names out;
  if (named.compresses != CompressionPlace::kNone) out.insert("no operation is host (compute)");
  if (named.compresses == CompressionPlace::kBehindLayers) out.insert("no operation is probe (compute)");
  // Compressions at the end of a prompt are priced layer by layer.
  if (named.spec.compression.behind > 0 && named.compresses == CompressionPlace::kInLayers) {
    for (const char* const one : {"upload", "score", "select", "move"})
      out.insert(std::string("no price has ") + one + " (compute)");
  }
  // Without compressions one plan serves all layers.
  if (named.spec.compression.wraps) out.insert("no price has plan (compute)");
  if (named.spec.compression.state) {
    out.insert("priced alone: capture (compute) after attention (compute)");
    out.insert(std::string("unpriced: ") + (attention.rows.decodes ? "decode" : "chunk") +
               " attention (compute) after capture (compute)");
  }
  if (!recalls(attention.kind)) return out;
  if (attention.fills) out.insert("unpriced: upload (compute) after offload (offload) of the step before");
  const bool tokens = attention.kind == RetrievalKind::kRecallsTokens;
  if (!attention.speculation)
    out.insert(tokens ? "no operation is host (host)" : "no operation is host (compute)");
  if (named.spec.prompts.prompts && named.spec.prompts.residents)
    out.insert("unpriced: append (compute) after chunk attention (compute)");
  if (!attention.chooses) return out;
  if (attention.kind == RetrievalKind::kRecallsPages)
    out.insert("recall (compute) is priced as recall (h2d)");
  if (!attention.speculation) return out;
  out.merge(Names{"priced alone: recall (h2d) after recall (h2d)",
                  "priced alone: recall (h2d) after recall (h2d) of the step before",
                  "unpriced: page score (select) after keep query (compute)",
                  std::string("unpriced: choose (select) after ") +
                      (attention.rows.chunks ? "chunk" : "decode") + " attention (compute)",
                  "unpriced: append (compute) after recall (recall) of the step before"});
  return out;
}

}  // namespace

TEST_CASE("step lists: the committed files are what the definition lists") {
  const bool write = std::getenv("KVTWIN_WRITE_OPERATIONS") != nullptr;
  std::set<std::string> files;
  for (const NamedList& list : named_lists()) {
    CAPTURE(list.name);
    const std::string path = file_of(list.name);
    files.insert(std::filesystem::path(path).filename().string());
    if (write) std::ofstream(path) << list.text();
    std::ostringstream committed;
    committed << std::ifstream(path).rdbuf();
    CHECK(committed.str() == list.text());
  }
  for (const auto& entry : std::filesystem::directory_iterator(source_dir() + "/tests/golden/operations"))
    CHECK(files.contains(entry.path().filename().string()));
}

TEST_CASE("step lists: every operation is priced, in the order in which it is started") {
  for (const NamedList& list : named_lists()) {
    CAPTURE(list.name);
    const RetrievalStep step = make_retrieval_step(priced(list));
    const Names found = Comparison(step.graph, list_step(list.spec)).differences();
    for (const std::string& one : found) {
      if (!known_differences(list).contains(one)) MESSAGE(list.name << ": " << one);
    }
    CHECK(found == known_differences(list));
  }
}

TEST_CASE("step lists: the comparison finds operations that are missing, moved or unordered") {
  const NamedList named = named_lists().front();
  const StepListSpec& spec = named.spec;
  const RetrievalStep step = make_retrieval_step(priced(named));
  const auto changed = [&](auto change) {
    const StepList whole = list_step(spec);
    std::vector<ListedOperation> operations(whole.operations().begin(), whole.operations().end());
    change(&operations);
    StepList list;
    for (const ListedOperation& one : operations) list.add(one);
    return Comparison(step.graph, list).differences();
  };
  using Operations = std::vector<ListedOperation>;
  const auto of = [](Operations* all, Operation kind) {
    return std::find_if(all->begin(), all->end(), [&](const auto& one) { return one.kind == kind; });
  };
  CHECK(changed([](Operations*) {}).empty());
  CHECK(changed([&](Operations* all) {
          std::iter_swap(of(all, Operation::kAppend), of(all, Operation::kDown));
        }) != Names{});
  CHECK(changed([&](Operations* all) { of(all, Operation::kAppend)->stream = StreamKind::kRecall; }) !=
        Names{});
  CHECK(changed([&](Operations* all) { of(all, Operation::kAppend)->kind = Operation::kCounts; }) != Names{});
}
