#include "models/catalog/base_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <memory>

#include "models/catalog/catalog.h"
#include "models/files/textproto.h"
#include "traces/proto/model.pb.h"

namespace kvtwin {
namespace {

namespace fs = std::filesystem;
namespace pb = google::protobuf;

const pb::FieldDescriptor* field_of(const pb::Message& message, const std::string& name) {
  return message.GetDescriptor()->FindFieldByName(name);
}

std::string text_of(const pb::Message& message, const char* name) {
  const pb::FieldDescriptor* field = field_of(message, name);
  return field == nullptr ? "" : message.GetReflection()->GetString(message, field);
}

std::string beside(const std::string& file, const std::string& path) {
  if (fs::path(path).is_absolute()) return path;
  return (fs::path(file).parent_path() / path).lexically_normal().string();
}

// Marks a figure as one of another GPU.
void make_assumed(const std::string& base, v1::Figure* figure) {
  if (figure->basis() != v1::Figure::MEASURED && figure->basis() != v1::Figure::DERIVED) return;
  figure->set_basis(v1::Figure::ASSUMED);
  figure->set_source(fmt::format("as on the {}, not measured here: {}", base, figure->source()));
}

void make_all_assumed(const std::string& base, pb::Message* message) {
  if (auto* figure = dynamic_cast<v1::Figure*>(message)) return make_assumed(base, figure);
  const pb::Reflection& access = *message->GetReflection();
  std::vector<const pb::FieldDescriptor*> fields;
  access.ListFields(*message, &fields);
  for (const pb::FieldDescriptor* field : fields) {
    if (field->cpp_type() != pb::FieldDescriptor::CPPTYPE_MESSAGE) continue;
    if (!field->is_repeated()) {
      make_all_assumed(base, access.MutableMessage(message, field));
      continue;
    }
    for (int i = 0; i < access.FieldSize(*message, field); ++i)
      make_all_assumed(base, access.MutableRepeatedMessage(message, field, i));
  }
}

// Names of the fields that a base may give.
std::vector<std::string> inherited_fields(const pb::Message& message) {
  std::vector<std::string> names;
  for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
    const std::string& name = message.GetDescriptor()->field(i)->name();
    if (name != "name" && name != "title" && name != "base" && name != "without") names.push_back(name);
  }
  return names;
}

// Measured all-reduces are of the base's links.
constexpr const char* kLinkFigures[] = {"nvlink_bytes_per_s", "nvlink_fraction", "all_reduce_fixed_ns",
                                        "pcie_gen", "pcie_lanes"};
constexpr const char* kMeasuredOverLinks = "all_reduce";

// True if a device's file states names and a price only: then it is the GPU of its base. Names alone are a
// file that is not completed yet.
bool is_repriced(const pb::Message& message) {
  std::vector<const pb::FieldDescriptor*> fields;
  message.GetReflection()->ListFields(message, &fields);
  const auto own = [](const std::string& name) {
    return name == "name" || name == "title" || name == "base" || name == "price_usd_per_hour";
  };
  const auto is_price = [](const auto* field) { return field->name() == "price_usd_per_hour"; };
  return std::any_of(fields.begin(), fields.end(), is_price) &&
         std::all_of(fields.begin(), fields.end(), [&](const auto* field) { return own(field->name()); });
}

class Loader {
 public:
  Loader(const FindCatalogFile& find, std::vector<std::string>* files) : find_(find), files_(files) {}

  Result<void> load(std::string_view text, const std::string& where, pb::Message* message) {
    if (Result<void> ok = parse_textproto(text, where, message); !ok) return ok;
    if (const std::string device = text_of(*message, "device"); is_catalog_path(device))
      message->GetReflection()->SetString(message, field_of(*message, "device"), beside(where, device));
    const Result<std::vector<std::string>> without = without_of(text, where, *message);
    if (!without) return tl::unexpected<Error>(without.error());
    const std::string base = text_of(*message, "base");
    if (base.empty()) return {};
    const std::unique_ptr<pb::Message> from(message->New());
    if (Result<void> ok = load_base(base, text, where, from.get()); !ok) return ok;
    inherit(from.get(), *without, message);
    return {};
  }

 private:
  Result<void> load_base(const std::string& base, std::string_view text, const std::string& where,
                         pb::Message* from) {
    const std::string place = place_of_field(text, where, *from, "base");
    Result<std::string> path = is_catalog_path(base) ? Result<std::string>(beside(where, base)) : find_(base);
    if (!path) return make_error(place, "base: " + path.error().what, path.error().hint);
    if (chain_.empty()) chain_.push_back(fs::path(where).lexically_normal().string());
    if (std::find(chain_.begin(), chain_.end(), *path) != chain_.end()) {
      chain_.push_back(*path);
      return make_error(place, fmt::format("the bases form a cycle: {}", fmt::join(chain_, " -> ")),
                        "a file that states every figure has no base");
    }
    chain_.push_back(*path);
    if (files_ != nullptr) files_->push_back(*path);
    const Result<std::string> content = read_text_file(*path, size_t{1} << 20);
    if (!content)
      return make_error(place, fmt::format("base: {} {}", content.error().where, content.error().what),
                        "a name of the catalog, or a path relative to this file");
    return load(*content, *path, from);
  }

  Result<std::vector<std::string>> without_of(std::string_view text, const std::string& where,
                                              const pb::Message& message) {
    std::vector<std::string> names;
    const pb::FieldDescriptor* field = field_of(message, "without");
    const std::vector<std::string> known = inherited_fields(message);
    for (int i = 0; i < message.GetReflection()->FieldSize(message, field); ++i) {
      names.push_back(message.GetReflection()->GetRepeatedString(message, field, i));
      if (std::find(known.begin(), known.end(), names.back()) != known.end()) continue;
      return make_error(place_of_field(text, where, message, "without"),
                        fmt::format("without lists \"{}\", which is no figure", names.back()),
                        did_you_mean(names.back(), known));
    }
    return names;
  }

  static void inherit(pb::Message* from, const std::vector<std::string>& without, pb::Message* message) {
    const pb::Reflection& access = *message->GetReflection();
    const std::string stated_name = text_of(*from, "name"), base = stated_name.empty() ? "base" : stated_name;
    const std::string device = text_of(*message, "device");
    const bool is_device = field_of(*message, "device") == nullptr;
    const bool other_gpu =
        is_device ? !is_repriced(*message) : !device.empty() && device != text_of(*from, "device");
    if (other_gpu) make_all_assumed(base, from);
    // Fields that the file states, and those that it is without, are not taken. A figure is taken whole, so
    // that no value gets the source of another one.
    const auto own = [&](const std::string& name) {
      const pb::FieldDescriptor* field = field_of(*message, name);
      const bool stated =
          field->is_repeated() ? access.FieldSize(*message, field) > 0 : access.HasField(*message, field);
      return stated || std::find(without.begin(), without.end(), name) != without.end();
    };
    for (const std::string& name : inherited_fields(*message)) {
      if (own(name)) access.ClearField(from, field_of(*message, name));
    }
    if (const pb::FieldDescriptor* measured = field_of(*message, kMeasuredOverLinks);
        measured != nullptr && std::any_of(std::begin(kLinkFigures), std::end(kLinkFigures), own))
      access.ClearField(from, measured);
    for (const char* name : {"name", "title", "base", "without"}) {
      const pb::FieldDescriptor* field = field_of(*from, name);
      if (field != nullptr) access.ClearField(from, field);
    }
    message->MergeFrom(*from);
  }

  const FindCatalogFile& find_;
  std::vector<std::string>* files_;
  std::vector<std::string> chain_;
};

}  // namespace

Result<void> parse_with_base(std::string_view text, const std::string& where, const FindCatalogFile& find,
                             pb::Message* message, std::vector<std::string>* files) {
  return Loader(find, files).load(text, where, message);
}

}  // namespace kvtwin
