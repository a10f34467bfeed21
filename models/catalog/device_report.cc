#include "models/catalog/device_report.h"

#include <fmt/format.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <vector>

#include "models/files/textproto.h"
#include "traces/proto/model.pb.h"

namespace kvtwin {
namespace {

namespace pb = google::protobuf;

struct NamedFigure {
  std::string field;
  v1::Figure figure;
  bool present = false;
};

// In the order of the schema.
std::vector<NamedFigure> figures_of(const pb::Message& message) {
  std::vector<NamedFigure> out;
  const pb::Reflection& access = *message.GetReflection();
  for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
    const pb::FieldDescriptor* field = message.GetDescriptor()->field(i);
    if (field->is_repeated() || field->message_type() != v1::Figure::descriptor()) continue;
    NamedFigure& named = out.emplace_back();
    named.field = field->name();
    named.present = access.HasField(message, field);
    if (named.present) named.figure = static_cast<const v1::Figure&>(access.GetMessage(message, field));
  }
  return out;
}

// The header that declares the message decides; without one, the message that the text is.
bool is_node_text(const std::string& text) {
  if (text.find("kvtwin.v1.NodeSpec") != std::string::npos) return true;
  if (text.find("kvtwin.v1.DeviceSpec") != std::string::npos) return false;
  v1::DeviceSpec device;
  v1::NodeSpec node;
  return !parse_textproto(text, "", &device) && parse_textproto(text, "", &node);
}

std::string table(const pb::Message& stated, const pb::Message& complete, const std::string& base) {
  std::string text = fmt::format("  {:<24} {:>16}  {:<10} {}\n", "figure", "value", "basis", "stated by");
  const std::vector<NamedFigure> own = figures_of(stated), all = figures_of(complete);
  for (size_t i = 0; i < all.size(); ++i) {
    if (!all[i].present) {
      text += fmt::format("  {:<24} {:>16}\n", all[i].field, "none");
      continue;
    }
    text +=
        fmt::format("  {:<24} {:>16}  {:<10} {}\n", all[i].field, all[i].figure.value(),
                    name_of(static_cast<Basis>(all[i].figure.basis())), own[i].present ? "this file" : base);
  }
  return text;
}

std::string all_reduce_row(const v1::NodeSpec&, const v1::NodeSpec&) { return ""; }
std::string all_reduce_row(const v1::DeviceSpec& stated, const v1::DeviceSpec& complete) {
  std::string gpus;
  for (const v1::AllReduceFigures& row : complete.all_reduce())
    gpus += fmt::format("{}{}", gpus.empty() ? "" : ", ", row.gpus());
  if (gpus.empty()) return fmt::format("  {:<24} {:>16}\n", "all_reduce", "not measured");
  const v1::AllReduceFigures& first = complete.all_reduce(0);
  return fmt::format("  {:<24} {:>16}  {:<10} {}\n", "all_reduce", "of " + gpus + " GPUs",
                     name_of(static_cast<Basis>(first.bytes_per_s().basis())),
                     stated.all_reduce_size() > 0 ? "this file" : stated.base());
}

template <typename Message>
Result<std::string> report(const Catalog& catalog, const char* kind, const std::string& text,
                           const std::string& path) {
  Message stated, complete;
  if (auto r = parse_textproto(text, path, &stated); !r) return tl::unexpected<Error>(r.error());
  if (auto r = catalog.parse(kind, text, path, &complete); !r) return tl::unexpected<Error>(r.error());
  size_t own = 0, all = 0;
  for (const NamedFigure& named : figures_of(stated)) own += named.present ? 1 : 0;
  for (const NamedFigure& named : figures_of(complete)) all += named.present ? 1 : 0;
  std::string out = fmt::format("{}: a {} with every figure that it needs\n", path, kind);
  if (!stated.base().empty())
    out += fmt::format("{} of {} are of its base, {}\n", all - own, all, stated.base());
  return out + "\n" + table(stated, complete, stated.base()) + all_reduce_row(stated, complete);
}

// The base's figures as comments, to be uncommented and changed.
std::string commented_figures(const pb::Message& base) {
  std::string text;
  for (const NamedFigure& named : figures_of(base)) {
    if (!named.present) continue;
    text +=
        fmt::format("# {} {{ value: {} basis: {}\n#   source: {} }}\n", named.field, named.figure.value(),
                    v1::Figure::Basis_Name(named.figure.basis()), textproto_quoted(named.figure.source()));
  }
  return text;
}

template <typename Message>
Result<std::string> new_text(const Catalog& catalog, const char* kind, const std::string& name,
                             const std::string& base, const std::string& own_fields) {
  const Result<std::string> path = catalog.path_of(kind, base);
  if (!path) return tl::unexpected<Error>(path.error());
  const Result<std::string> text = read_text_file(*path, size_t{1} << 20);
  if (!text) return tl::unexpected<Error>(text.error());
  Message from;
  if (auto r = catalog.parse(kind, *text, *path, &from); !r) return tl::unexpected<Error>(r.error());
  return fmt::format(
      "# proto-file: traces/proto/model.proto\n# proto-message: {}\nname: {}\n{}base: {}\n"
      "# A figure that this file does not state is that of the base. Uncomment those that differ, and state "
      "their\n"
      "# value, basis (DATASHEET, MEASURED, DERIVED or ASSUMED) and source. Figures that it does not have:\n"
      "# without: [\"nvlink_bytes_per_s\"]\n{}",
      from.GetTypeName(), textproto_quoted(name), own_fields, textproto_quoted(base),
      commented_figures(from));
}

}  // namespace

Result<std::string> device_report(const Catalog& catalog, const std::string& name) {
  const Result<std::string> path = catalog.path_of("device", name);
  if (!path) return tl::unexpected<Error>(path.error());
  const Result<std::string> text = read_text_file(*path, size_t{1} << 20);
  if (!text) return tl::unexpected<Error>(text.error());
  if (!is_node_text(*text)) {
    if (auto device = parse_device(*text, *path, catalog); !device)
      return tl::unexpected<Error>(device.error());
    return report<v1::DeviceSpec>(catalog, "device", *text, *path);
  }
  const Result<NodeSpec> node = parse_node(*text, *path, catalog);
  if (!node) return tl::unexpected<Error>(node.error());
  if (auto device = catalog.device(node->device); !device) return tl::unexpected<Error>(device.error());
  return report<v1::NodeSpec>(catalog, "node", *text, *path);
}

Result<std::string> new_device_text(const Catalog& catalog, const std::string& name,
                                    const std::string& base) {
  return new_text<v1::DeviceSpec>(
      catalog, "device", name, base,
      fmt::format("title: {}  # as nvidia-smi --query-gpu=name reports it\n", textproto_quoted(name)));
}

Result<std::string> new_node_text(const Catalog& catalog, const std::string& name, const std::string& device,
                                  const std::string& base) {
  return new_text<v1::NodeSpec>(
      catalog, "node", name, base,
      fmt::format("device: {}\ngpus: 1\nsockets: 1\ngpus_per_pcie_link: 1\n", textproto_quoted(device)));
}

}  // namespace kvtwin
