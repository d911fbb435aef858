#include "sftrun/weights/score_head.h"

#include <algorithm>
#include <span>
#include <utility>

#include "forwarding_checkpoint.h"
#include "saved_rows.h"
#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/core/optional_file.h"
#include "sftrun/core/python_json.h"
#include "sftrun/core/rng.h"
#include "sftrun/core/xxh3.h"
#include "sftrun/spec/trained_names.h"
#include "sftrun/weights/convert.h"

namespace sftrun::weights {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

class ScoredCheckpoint final : public ForwardingCheckpoint {
 public:
  ScoredCheckpoint(std::shared_ptr<const Checkpoint> base, spec::ScoreSpec score, uint64_t seed)
      : ForwardingCheckpoint(std::move(base)), seed_(seed) {
    const auto& own = base_->arch().score;
    is_new_ = !own || own->num_labels != score.num_labels;
    spec::set_score(arch_, std::move(score));
    if (!arch_.pad_token_id) arch_.pad_token_id = padding_of_tokenizer();
    if (is_new_) replace_head();
  }

  bool has(const std::string& name) const override {
    return name == spec::kScoreTensor ||
           (name != spec::kHeadTensor && ForwardingCheckpoint::has(name));
  }
  uint64_t stored_bytes(const std::string& name) const override {
    return is_added(name) ? 0 : ForwardingCheckpoint::stored_bytes(name);
  }
  void read(const std::string& name, DType dtype, void* destination) const override {
    if (!is_added(name)) return ForwardingCheckpoint::read(name, dtype, destination);
    const std::vector<float> values = initial_values();
    convert(DType::kF32, reinterpret_cast<const std::byte*>(values.data()), dtype,
            static_cast<std::byte*>(destination), std::ssize(values));
  }
  std::optional<uint64_t> read_range(const std::string& name, DType dtype, int64_t first,
                                     int64_t count, void* destination) const override {
    if (is_added(name)) return std::nullopt;
    return ForwardingCheckpoint::read_range(name, dtype, first, count, destination);
  }
  std::optional<std::span<const std::byte>> mapped(const std::string& name,
                                                   DType dtype) const override {
    return is_added(name) ? std::nullopt : ForwardingCheckpoint::mapped(name, dtype);
  }
  std::optional<PackedMatrix> packed(const std::string& name) const override {
    return is_added(name) ? std::nullopt : ForwardingCheckpoint::packed(name);
  }

 private:
  bool is_added(const std::string& name) const { return is_new_ && name == spec::kScoreTensor; }

  std::optional<int64_t> padding_of_tokenizer() const {
    const std::string text = base_->render_defaults().pad_token;
    if (text.empty()) return std::nullopt;
    const auto id = base_->tokenizer().token_to_id(text);
    return id ? std::optional<int64_t>(*id) : std::nullopt;
  }

  /// Behind the text model's tensors, where `tensor_specs` has it.
  void replace_head() {
    std::erase_if(tensors_, [](const TensorInfo& info) {
      return info.name == spec::kHeadTensor || info.name == spec::kScoreTensor;
    });
    const std::string norm = arch_.prefix + "norm.weight";
    const auto last = std::find_if(tensors_.begin(), tensors_.end(),
                                   [&](const TensorInfo& info) { return info.name == norm; });
    SFTRUN_CHECK(last != tensors_.end());
    tensors_.insert(last + 1, {.name = spec::kScoreTensor,
                               .shape = {arch_.score->num_labels, arch_.hidden_size},
                               .format = "F32"});
  }

  std::vector<float> initial_values() const {
    const std::string name = spec::kScoreTensor;
    RandomStream stream(seed_, xxh3_64(std::as_bytes(std::span(name))));
    std::vector<float> values(static_cast<size_t>(arch_.score->num_labels * arch_.hidden_size));
    for (float& value : values)
      value = static_cast<float>(arch_.initializer_range * stream.next_normal());
    return values;
  }

  uint64_t seed_;
  bool is_new_ = true;
};

ordered_json id2label_of(const spec::ScoreSpec& score) {
  ordered_json names = ordered_json::object();
  for (int64_t label = 0; label < score.num_labels; ++label)
    names[std::to_string(label)] = score.name_of(label);
  return names;
}

/// @throws DataError
spec::ScoreSpec score_in(const fs::path& path) {
  const auto json = parse_python_json<ordered_json>(read_text_file(path));
  const auto refuse = [&] {
    throw DataError("the file has no names of labels from 0 (\"id2label\")", path.string(),
                    "copy it again from the run that trained the adapter");
  };
  if (!json.is_object() || !json.contains("id2label") || !json["id2label"].is_object()) refuse();
  const ordered_json& names = json["id2label"];
  spec::ScoreSpec score{.num_labels = std::ssize(names)};
  for (int64_t label = 0; label < score.num_labels; ++label) {
    const auto name = names.find(std::to_string(label));
    if (name == names.end() || !name->is_string()) refuse();
    score.names.push_back(name->get<std::string>());
  }
  if (score.num_labels == 0) refuse();
  if (json.contains("problem_type") && json["problem_type"].is_string())
    score.problem_type = json["problem_type"].get<std::string>();
  return score;
}

}  // namespace

std::shared_ptr<const Checkpoint> with_score(std::shared_ptr<const Checkpoint> model,
                                             spec::ScoreSpec score, uint64_t seed) {
  return std::make_shared<const ScoredCheckpoint>(std::move(model), std::move(score), seed);
}

std::optional<int64_t> padding_to_write(const Checkpoint& model) {
  const spec::ArchSpec& arch = model.arch();
  if (arch.pad_token_id) return arch.pad_token_id;
  const templates::RenderOptions texts = model.render_defaults();
  const tokenizer::Tokenizer tokenizer = model.tokenizer();
  for (const std::string& text : {texts.unk_token, texts.bos_token}) {
    const auto id = text.empty() ? std::nullopt : tokenizer.token_to_id(text);
    const auto& ends = arch.eos_token_ids;
    if (id && std::find(ends.begin(), ends.end(), int64_t{*id}) == ends.end()) return *id;
  }
  return std::nullopt;
}

ordered_json labels_json(const spec::ArchSpec& arch, std::optional<int64_t> padding) {
  const spec::ScoreSpec& score = arch.score.value();
  ordered_json ids = ordered_json::object();
  for (int64_t label = 0; label < score.num_labels; ++label) ids[score.name_of(label)] = label;
  return {{"num_labels", score.num_labels},
          {"id2label", id2label_of(score)},
          {"label2id", std::move(ids)},
          {"problem_type",
           score.problem_type.empty() ? ordered_json(nullptr) : ordered_json(score.problem_type)},
          {"pad_token_id", padding ? ordered_json(*padding) : ordered_json(nullptr)}};
}

void write_labels(const fs::path& folder, const spec::ArchSpec& arch) {
  if (!arch.score) return;
  write_file_atomically(folder / kLabelsFile, labels_json(arch, arch.pad_token_id).dump(2) + "\n");
}

std::optional<spec::ScoreSpec> read_score(const fs::path& adapter) {
  if (has_optional_file(adapter / kLabelsFile)) return score_in(adapter / kLabelsFile);
  const fs::path path = adapter / "adapter_model.safetensors";
  if (!has_optional_file(path)) return std::nullopt;
  const SafetensorsFile file = open_adapter_file(path);
  const SafetensorsEntry* entry = file.find(std::string(kPeftPrefix) + spec::kScoreTensor);
  if (entry == nullptr || entry->shape.size() != 2) return std::nullopt;
  return spec::ScoreSpec{.num_labels = entry->shape[0]};
}

}  // namespace sftrun::weights
