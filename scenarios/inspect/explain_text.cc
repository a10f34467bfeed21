// ExplainedStep as text for people and for programs.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <iterator>
#include <string_view>

#include "scenarios/inspect/explain.h"

namespace kvtwin {
namespace {

constexpr size_t kStallsShown = 8;

double us(Ticks ticks) { return static_cast<double>(ticks) / kTicksPerNs / 1e3; }
double ms(Ticks ticks) { return us(ticks) / 1e3; }
std::string layer_of(uint16_t layer) { return layer == kNoLayer ? "" : fmt::format("[{}]", layer); }

std::string op_name(const StepGraph& graph, OpId id) {
  const Op& op = graph.op(id);
  return fmt::format("{}{}", name_of(op.kind), layer_of(op.layer));
}

// The operation whose end the stall waited for.
std::string reason_of(const ExplainedStep& step, const OpWait& wait) {
  if (wait.stalled_for != OpId{UINT32_MAX}) return op_name(step.graph, wait.stalled_for);
  if (wait.stalled_port == PortId{UINT16_MAX}) return "the previous step";
  return fmt::format("{}{} of the previous step", step.graph.port_name(wait.stalled_port),
                     layer_of(step.graph.port_layer(wait.stalled_port)));
}

void kinds_table(const ExplainedStep& step, std::string* out) {
  struct Sum {
    uint32_t count = 0;
    Ticks time = 0, critical = 0, slack = kNobodyWaits;
  };
  std::array<Sum, kOpKinds> sums{};
  for (uint32_t i = 0; i < step.graph.op_count(); ++i) {
    if (step.graph.absent(OpId{i})) continue;
    Sum& sum = sums[static_cast<size_t>(step.graph.op(OpId{i}).kind)];
    const Ticks took = step.graph.duration(OpId{i});
    ++sum.count, sum.time += took;
    if (step.waits[i].critical) sum.critical += took;
    sum.slack = std::min(sum.slack, step.waits[i].slack);
  }
  fmt::format_to(std::back_inserter(*out), "\n  {:<20} {:>6} {:>12} {:>18} {:>16}\n", "operation", "count",
                 "time, ms", "on the path, ms", "least slack, us");
  for (size_t kind = 0; kind < sums.size(); ++kind) {
    const Sum& sum = sums[kind];
    if (sum.count == 0) continue;
    fmt::format_to(std::back_inserter(*out), "  {:<20} {:>6} {:>12.3f} {:>18.3f} {:>16}\n",
                   name_of(static_cast<OpKind>(kind)), sum.count, ms(sum.time), ms(sum.critical),
                   sum.slack == kNobodyWaits ? "-" : fmt::format("{:.1f}", us(sum.slack)));
  }
  if (!step.exchange.empty()) *out += fmt::format("  {:<20} {}\n", "all-reduce is", step.exchange);
}

// Stalls of the compute stream, longest first.
void stalls_table(const ExplainedStep& step, std::string* out) {
  std::vector<uint32_t> stalls;
  Ticks all = 0;
  for (uint32_t i = 0; i < step.waits.size(); ++i) {
    if (step.graph.op(OpId{i}).stream != StreamId{0} || step.waits[i].stalled == 0) continue;
    stalls.push_back(i);
    all += step.waits[i].stalled;
  }
  std::stable_sort(stalls.begin(), stalls.end(),
                   [&](uint32_t a, uint32_t b) { return step.waits[a].stalled > step.waits[b].stalled; });
  fmt::format_to(std::back_inserter(*out), "\n  stream {} stalls {} times, {:.3f} ms\n",
                 step.graph.streams()[0], stalls.size(), ms(all));
  for (size_t i = 0; i < std::min(stalls.size(), kStallsShown); ++i) {
    const OpWait& wait = step.waits[stalls[i]];
    fmt::format_to(std::back_inserter(*out), "    {:<18} {:>10.1f} us   on {}\n",
                   op_name(step.graph, OpId{stalls[i]}), us(wait.stalled), reason_of(step, wait));
  }
  if (stalls.size() > kStallsShown)
    fmt::format_to(std::back_inserter(*out), "    and {} more\n", stalls.size() - kStallsShown);
}

// What the step's time is the sum of; what a method adds has a line for each family. The rest is what the
// graph has beside the model's operations: layers that choose nothing and read everything, recalls, and
// waits.
void prices_table(const ExplainedStep& step, std::string* out) {
  const Ticks took = step.timing.end - step.begins;
  if (step.prices.empty() || took <= 0) return;
  const auto percent = [&](Ticks time) {
    return 100.0 * static_cast<double>(time) / static_cast<double>(took);
  };
  fmt::format_to(std::back_inserter(*out), "\n  {:<40} {:>6} {:>12} {:>12} {:>14}   {}\n", "price of",
                 "times", "each, us", "time, ms", "% of the step", "from");
  Ticks rest = took;
  for (const StepPart& part : step.prices) {
    const Ticks time = part.times * part.each;
    if (time == 0) continue;
    rest -= time;
    fmt::format_to(std::back_inserter(*out), "  {:<40} {:>6} {:>12.2f} {:>12.3f} {:>14.2f}   {}\n", part.name,
                   part.times, us(part.each), ms(time), percent(time), name_of(part.evidence));
  }
  if (std::abs(rest) >= kTicksPerNs)
    fmt::format_to(std::back_inserter(*out), "  {:<40} {:>6} {:>12} {:>12.3f} {:>14.2f}\n",
                   "rest: layers that read all, recalls", "", "", ms(rest), percent(rest));
}

std::string table(const ExplainedStep& step, const std::string& title) {
  const StepTiming& timing = step.timing;
  const Ticks took = timing.end - step.begins;
  std::string out = fmt::format("{}: step {} of engine {}, {}\n\n", title, step.step, step.engine, step.of);
  Ticks path = 0;
  size_t on_path = 0;
  for (uint32_t i = 0; i < step.waits.size(); ++i) {
    if (!step.waits[i].critical) continue;
    path += step.graph.duration(OpId{i});
    ++on_path;
  }
  const auto line = [&](const char* name, const std::string& value) {
    fmt::format_to(std::back_inserter(out), "  {:<22} {}\n", name, value);
  };
  line("step", fmt::format("{:>10.3f} ms   from {:.6f} s of the run", ms(took), step.begins_ns / 1e9));
  line("critical path", fmt::format("{:>10.3f} ms   {} operations; the rest is waiting for an earlier step",
                                    ms(path), on_path));
  line("transfers, exposed",
       fmt::format("{:>10.3f} ms   {:.1f} % of the step", ms(timing.exposed),
                   took > 0 ? 100.0 * static_cast<double>(timing.exposed) / static_cast<double>(took) : 0.0));
  line("transfers, hidden",
       fmt::format("{:>10.3f} ms   of one GPU: {:.3f} MB in, {:.3f} MB out", ms(timing.hidden),
                   static_cast<double>(timing.bytes_in) / 1e6, static_cast<double>(timing.bytes_out) / 1e6));
  kinds_table(step, &out);
  stalls_table(step, &out);
  prices_table(step, &out);
  return out;
}

// The operations that the CUDA engine starts, and this one prices; kernels that have no rows included.
std::string starts_of(const StepGraph& graph, OpId id) {
  std::vector<std::string_view> names;
  for (const ListedOperation& part : graph.parts(id)) names.emplace_back(name_of(part.kind));
  return fmt::format("{}", fmt::join(names, "; "));
}

// One operation as names and values; `quote` encloses text.
std::vector<std::pair<std::string_view, std::string>> record(const ExplainedStep& step, uint32_t i,
                                                             std::string_view quote) {
  const StepGraph& graph = step.graph;
  const Op& op = graph.op(OpId{i});
  const auto text = [&](std::string_view value) { return fmt::format("{}{}{}", quote, value, quote); };
  const std::string none = quote.empty() ? "" : "null";
  const auto ns = [](Ticks ticks) { return fmt::format("{:.3f}", static_cast<double>(ticks) / kTicksPerNs); };
  const Ticks slack = step.waits[i].slack;
  return {{"operation", text(name_of(op.kind))},
          {"layer", op.layer == kNoLayer ? none : fmt::to_string(op.layer)},
          {"stream", text(graph.streams()[static_cast<size_t>(op.stream)])},
          {"starts", text(starts_of(graph, OpId{i}))},
          {"happens", graph.absent(OpId{i}) ? "false" : "true"},
          {"predicated", op.outcome == kAlways ? "false" : "true"},
          {"required", op.required ? "true" : "false"},
          {"start_ns", ns(step.times[i].start - step.begins)},
          {"duration_ns", ns(graph.duration(OpId{i}))},
          {"bytes", fmt::to_string(graph.bytes(OpId{i}))},
          {"critical", step.waits[i].critical ? "true" : "false"},
          {"slack_ns", slack == kNobodyWaits ? none : ns(slack)},
          {"stalled_ns", ns(step.waits[i].stalled)}};
}

std::string records(const ExplainedStep& step, OutputFormat format) {
  const bool csv = format == OutputFormat::kCsv;
  std::string out = format == OutputFormat::kJson ? "[" : "";
  for (uint32_t i = 0; i < step.graph.op_count(); ++i) {
    std::vector<std::string> names, values;
    for (const auto& [name, value] : record(step, i, csv ? "" : "\"")) {
      names.emplace_back(name);
      values.push_back(csv ? value : fmt::format("\"{}\":{}", name, value));
    }
    if (csv && i == 0) out += fmt::format("{}\n", fmt::join(names, ","));
    if (csv) {
      out += fmt::format("{}\n", fmt::join(values, ","));
    } else {
      const bool array = format == OutputFormat::kJson;
      out +=
          fmt::format("{}{{{}}}{}", array && i > 0 ? ",\n " : "", fmt::join(values, ","), array ? "" : "\n");
    }
  }
  return out + (format == OutputFormat::kJson ? "]\n" : "");
}

class Dot {
 public:
  Dot(const ExplainedStep& step, uint32_t first, uint32_t last) : step_(step), first_(first), last_(last) {}

  std::string text(const std::string& title) {
    add("digraph step {{\n  rankdir=LR;\n  node [shape=box, fontsize=10];\n  edge [arrowsize=0.6];\n");
    add("  label=\"{}: step {} of engine {}\\n{}\\n{:.3f} ms, exposed {:.3f} ms, hidden {:.3f} ms\";\n",
        title, step_.step, step_.engine, step_.of, ms(step_.timing.end - step_.begins),
        ms(step_.timing.exposed), ms(step_.timing.hidden));
    for (size_t s = 0; s < graph().streams().size(); ++s) cluster(s);
    for (uint32_t p = 0; p < graph().port_count(); ++p) port(PortId{static_cast<uint16_t>(p)});
    for (uint32_t i = 0; i < graph().op_count(); ++i) {
      if (shown(OpId{i})) edges(OpId{i});
    }
    return out_ + "}\n";
  }

 private:
  const StepGraph& graph() const { return step_.graph; }
  template <typename... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(out_), format, std::forward<Args>(args)...);
  }
  bool shown(OpId id) const { return shown_layer(graph().op(id).layer); }
  bool shown_layer(uint16_t layer) const { return layer == kNoLayer || (layer >= first_ && layer <= last_); }
  static uint32_t number(OpId id) { return static_cast<uint32_t>(id); }

  void cluster(size_t stream) {
    add("  subgraph cluster_{} {{\n    label=\"{}\"; style=rounded; color=gray60;\n", stream,
        graph().streams()[stream]);
    for (uint32_t i = 0; i < graph().op_count(); ++i) {
      if (static_cast<size_t>(graph().op(OpId{i}).stream) == stream && shown(OpId{i})) node(OpId{i});
    }
    add("  }}\n");
  }

  void node(OpId id) {
    const OpWait& wait = step_.waits[number(id)];
    const bool absent = graph().absent(id);
    std::string label = op_name(graph(), id);
    if (absent) {
      label += "\\ndoes not run";
    } else {
      label += fmt::format("\\n{:.1f} us at {:.1f}", us(graph().duration(id)),
                           us(step_.times[number(id)].start - step_.begins));
      if (graph().bytes(id) > 0)
        label += fmt::format("\\n{:.3f} MB", static_cast<double>(graph().bytes(id)) / 1e6);
      if (!wait.critical && wait.slack != kNobodyWaits)
        label += fmt::format("\\nslack {:.1f} us", us(wait.slack));
    }
    std::string style = absent ? "dotted" : graph().op(id).outcome == kAlways ? "solid" : "dashed";
    if (!graph().op(id).required) style += ",rounded";
    add("    op{} [label=\"{}\", style=\"{}\"{}];\n", number(id), label, style,
        wait.critical ? ", color=red, penwidth=2"
        : absent      ? ", color=gray60, fontcolor=gray60"
                      : "");
  }

  // State that is carried between steps: an ellipse before the operations that wait for it, another after the
  // one that produces it.
  void port(PortId port) {
    if (!shown_layer(graph().port_layer(port))) return;
    const auto p = static_cast<uint32_t>(port);
    const std::string name = graph().port_name(port) + layer_of(graph().port_layer(port));
    bool waited = false;
    for (uint32_t i = 0; i < graph().op_count(); ++i) {
      const auto ports = graph().ports(OpId{i});
      if (std::find(ports.begin(), ports.end(), port) == ports.end() || !shown(OpId{i})) continue;
      if (!waited)
        add("  in{} [label=\"{}\\nof the previous step\", shape=ellipse, color=gray40];\n", p, name);
      waited = true;
      const OpWait& wait = step_.waits[i];
      add("  in{} -> op{} [style=dashed{}];\n", p, i,
          wait.stalled > 0 && wait.stalled_port == port ? ", color=red, penwidth=2" : "");
    }
    const OpId feeder = graph().fed_by(port);
    if (feeder == OpId{UINT32_MAX} || !shown(feeder)) return;
    add("  out{} [label=\"{}\\nfor the next step\", shape=ellipse, color=gray40];\n", p, name);
    add("  op{} -> out{} [style=dashed];\n", number(feeder), p);
  }

  void edges(OpId op) {
    for (const OpId cause : graph().causes(op)) {
      if (!shown(cause)) continue;
      const bool order = graph().op(cause).stream == graph().op(op).stream;
      const bool critical = step_.waits[number(op)].critical && step_.waits[number(cause)].critical &&
                            step_.times[number(cause)].end == step_.times[number(op)].start;
      add("  op{} -> op{} [{}{}];\n", number(cause), number(op),
          order ? "color=gray40, weight=4" : "constraint=true", critical ? ", color=red, penwidth=2" : "");
    }
  }

  const ExplainedStep& step_;
  const uint32_t first_, last_;
  std::string out_;
};

}  // namespace

std::string explained_dot(const ExplainedStep& step, const std::string& title, uint32_t first_layer,
                          uint32_t last_layer) {
  return Dot(step, first_layer, last_layer).text(title);
}

std::string explained_text(const ExplainedStep& step, const std::string& title, OutputFormat format) {
  return format == OutputFormat::kTable ? table(step, title) : records(step, format);
}

}  // namespace kvtwin
