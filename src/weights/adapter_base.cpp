#include "sftrun/weights/adapter_base.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "forwarding_checkpoint.h"
#include "saved_rows.h"
#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/core/hash.h"
#include "sftrun/core/log.h"
#include "sftrun/core/optional_file.h"
#include "sftrun/core/presence.h"
#include "sftrun/core/strings.h"
#include "sftrun/spec/trained_names.h"
#include "sftrun/weights/adapter_file.h"
#include "sftrun/weights/convert.h"
#include "sftrun/weights/hf_text_files.h"
#include "sftrun/weights/projectors.h"
#include "sftrun/weights/score_head.h"

namespace sftrun::weights {
namespace {

namespace fs = std::filesystem;

/// Whether the base has the same rows: PEFT saves them whenever the module is adapted.
bool are_the_bases(const SafetensorsEntry& rows, const Checkpoint& base, const std::string& name) {
  const spec::ArchSpec& arch = base.arch();
  if (!base.has(name) || rows.shape != std::vector<int64_t>{arch.vocab_size, arch.hidden_size})
    return false;
  std::vector<std::byte> own(rows.bytes.size());
  base.read(name, *float_dtype(rows.dtype), own.data());
  return std::memcmp(own.data(), rows.bytes.data(), own.size()) == 0;
}

/// The embedding and head in an adapter's file.
class AdapterVocabulary {
 public:
  AdapterVocabulary(const Checkpoint& base, const fs::path& adapter)
      : path_(adapter / "adapter_model.safetensors"),
        arch_(base.arch()),
        vocab_size_(arch_.vocab_size) {
    if (!has_optional_file(path_)) return;  // load_adapter reports it
    file_.emplace(open_adapter_file(path_));
    const AdapterConfig config = load_adapter_config(adapter, arch_);
    embedding_ = find(config, spec::embedding_module(arch_));
    head_ = find(config, spec::kHeadModule);
    vocab_size_ = resized();
    drop_unchanged_rows(base);
    require_whole_vocabulary();
  }

  const SafetensorsFile& file() const { return *file_; }
  const fs::path& path() const { return path_; }
  int64_t vocab_size() const { return vocab_size_; }
  const SavedRows& embedding() const { return embedding_; }
  const SavedRows& head() const { return head_; }
  bool are_empty() const { return embedding_.is_empty() && head_.is_empty(); }
  bool part() const { return arch_.tie_word_embeddings && !head_.is_empty(); }

 private:
  SavedRows find(const AdapterConfig& config, const std::string& module) const {
    return find_saved_rows(*file_, path_.string(), config, arch_, module);
  }

  int64_t resized() const {
    for (const SavedRows* end : {&embedding_, &head_}) {
      if (end->rows != nullptr && end->rows->shape[0] != arch_.vocab_size)
        return end->rows->shape[0];
    }
    return arch_.vocab_size;
  }

  /// Drops rows that equal the base's, and a tied head that equals the embedding.
  void drop_unchanged_rows(const Checkpoint& base) {
    const std::string embedding = embedding_.tensor();
    if (arch_.tie_word_embeddings && !head_.is_empty()) {
      if (head_.rows == nullptr) head_.rows = embedding_.rows;
      if (head_.has_same_values(embedding_)) head_ = {.module = head_.module};
    }
    if (embedding_.rows != nullptr && are_the_bases(*embedding_.rows, base, embedding))
      embedding_.rows = nullptr;
    const bool is_tied = arch_.tie_word_embeddings;
    if (head_.rows == nullptr ||
        !are_the_bases(*head_.rows, base, is_tied ? embedding : head_.tensor()))
      return;
    // If head and embedding are no longer tied, the head keeps these rows.
    if (!is_tied || (head_.tokens == nullptr && embedding_.is_empty())) head_.rows = nullptr;
  }

  void require_whole_vocabulary() const {
    const auto rows_of = [&](const SavedRows& end) {
      return end.rows != nullptr ? end.rows->shape[0] : arch_.vocab_size;
    };
    if (arch_.per_layer_size > 0 && vocab_size_ != arch_.vocab_size) {
      throw DataError(fmt::format("the adapter's vocabulary was resized to {} tokens, but the "
                                  "adapter has no per-layer embeddings: PEFT does not save them",
                                  vocab_size_),
                      path_.string(),
                      "train with the original vocabulary: its unused tokens can be renamed");
    }
    const bool follows = arch_.tie_word_embeddings && head_.is_empty();
    const int64_t head = follows ? rows_of(embedding_) : rows_of(head_);
    if (rows_of(embedding_) == head) return;
    throw DataError(fmt::format("the adapter's vocabulary was resized, but embedding and head have "
                                "different sizes: {} rows in `{}`, {} in `{}`",
                                rows_of(embedding_), embedding_.module, head, head_.module),
                    path_.string(),
                    "save both: save_pretrained(…, save_embedding_layers=True), or train both "
                    "(modules_to_save)");
  }

  fs::path path_;
  const spec::ArchSpec& arch_;
  std::optional<SafetensorsFile> file_;
  SavedRows embedding_, head_;
  int64_t vocab_size_;
};

/// Whether both have the same tokens, with the same text and kind.
bool same_tokens(const tokenizer::Tokenizer& a, const tokenizer::Tokenizer& b) {
  if (a.vocab_size() != b.vocab_size()) return false;
  for (int64_t i = 0; i < a.vocab_size(); ++i) {
    const auto id = static_cast<tokenizer::TokenId>(i);
    if (a.id_to_token(id) != b.id_to_token(id) || a.is_special(id) != b.is_special(id) ||
        a.is_added(id) != b.is_added(id))
      return false;
  }
  return true;
}

/// The adapter's texts, where it has them.
templates::RenderOptions joined(templates::RenderOptions texts,
                                const templates::RenderOptions& own) {
  const auto take = [](std::string& text, const std::string& other) {
    if (!other.empty()) text = other;
  };
  take(texts.bos_token, own.bos_token);
  take(texts.eos_token, own.eos_token);
  take(texts.unk_token, own.unk_token);
  take(texts.pad_token, own.pad_token);
  return texts;
}

/// Whether the tokenizer files are byte-wise copies.
bool has_same_tokenizer_files(const fs::path& a, const fs::path& b) {
  if (!is_folder(a) || !has_optional_file(a / "tokenizer.json")) return false;
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
                           "added_tokens.json"}) {
    if (has_optional_file(a / name) != has_optional_file(b / name)) return false;
    if (has_optional_file(a / name) && read_text_file(a / name) != read_text_file(b / name))
      return false;
  }
  return true;
}

bool same_texts(const templates::RenderOptions& a, const templates::RenderOptions& b) {
  return a.bos_token == b.bos_token && a.eos_token == b.eos_token && a.unk_token == b.unk_token &&
         a.pad_token == b.pad_token;
}

/// The adapter's tokenizer, if it differs from the base's and the model has rows for its tokens.
std::optional<tokenizer::Tokenizer> own_tokenizer(const Checkpoint& base, const fs::path& base_path,
                                                  const fs::path& adapter, int64_t vocab_size) {
  if (!tokenizer::has_tokenizer_files(adapter) || has_same_tokenizer_files(base_path, adapter))
    return std::nullopt;
  tokenizer::Tokenizer own = tokenizer::Tokenizer::from_directory(adapter);
  const templates::RenderOptions texts = base.render_defaults();
  const bool is_only_one = is_folder(base_path) && !tokenizer::has_tokenizer_files(base_path);
  if (!is_only_one && same_tokens(own, base.tokenizer()) &&
      same_texts(joined(texts, read_special_texts(adapter)), texts))
    return std::nullopt;
  if (own.vocab_size() <= vocab_size) return own;
  log::warn(
      "{}: the adapter's tokenizer has token ids up to {}, but embedding and head have only {} "
      "rows; using the base's tokenizer",
      adapter.string(), own.vocab_size() - 1, vocab_size);
  return std::nullopt;
}

class ReplacedCheckpoint final : public ForwardingCheckpoint {
 public:
  ReplacedCheckpoint(std::shared_ptr<const Checkpoint> base, AdapterVocabulary ends)
      : ForwardingCheckpoint(std::move(base)), ends_(std::move(ends)) {
    arch_.vocab_size = ends_.vocab_size();
    const std::vector<int64_t> shape = {arch_.vocab_size, arch_.hidden_size};
    for (const SavedRows* end : {&ends_.embedding(), &ends_.head()}) {
      if (!end->is_empty()) replaced_[end->tensor()] = end;
    }
    if (ends_.part()) part_head();
    // Their `format` stays the base's, because merged weights are stored in it.
    for (TensorInfo& info : tensors_) {
      if (!replaced_.contains(info.name)) continue;
      info.shape = shape;
      info.stored_bytes = static_cast<uint64_t>(info.numel() * size_of(DType::kF32));
      info.parts.clear();
    }
  }

  void take_text(const fs::path& directory, std::optional<int64_t> new_eos) {
    text_directory_ = directory;
    if (new_eos) arch_.eos_token_ids.push_back(*new_eos);
  }

  bool has(const std::string& name) const override {
    return replaced_.contains(name) || base_->has(name);
  }

  uint64_t stored_bytes(const std::string& name) const override {
    if (!replaced_.contains(name)) return base_->stored_bytes(name);
    return static_cast<uint64_t>(arch_.vocab_size * arch_.hidden_size * size_of(DType::kF32));
  }

  void read(const std::string& name, DType dtype, void* destination) const override {
    const auto found = replaced_.find(name);
    if (found == replaced_.end()) return base_->read(name, dtype, destination);
    const SavedRows& end = *found->second;
    auto* to = static_cast<std::byte*>(destination);
    if (end.rows != nullptr)
      copy(*end.rows, dtype, to);
    else
      base_->read(base_->has(name) ? name : ends_.embedding().tensor(), dtype, destination);
    if (end.tokens == nullptr) return;
    const int64_t row = arch_.hidden_size;
    std::vector<std::byte> tokens(end.indices.size() * static_cast<size_t>(row * size_of(dtype)));
    copy(*end.tokens, dtype, tokens.data());
    for (size_t i = 0; i < end.indices.size(); ++i) {
      const auto bytes = static_cast<size_t>(row * size_of(dtype));
      std::memcpy(to + static_cast<size_t>(end.indices[i]) * bytes, tokens.data() + i * bytes,
                  bytes);
    }
  }
  std::optional<uint64_t> read_range(const std::string& name, DType dtype, int64_t first,
                                     int64_t count, void* destination) const override {
    if (replaced_.contains(name)) return std::nullopt;
    return base_->read_range(name, dtype, first, count, destination);
  }
  std::optional<std::span<const std::byte>> mapped(const std::string& name,
                                                   DType dtype) const override {
    return replaced_.contains(name) ? std::nullopt : base_->mapped(name, dtype);
  }
  std::optional<PackedMatrix> packed(const std::string& name) const override {
    return replaced_.contains(name) ? std::nullopt : base_->packed(name);
  }
  std::vector<WeightFile> weight_files() const override {
    std::vector<WeightFile> files = base_->weight_files();
    if (!replaced_.empty()) files.push_back({ends_.path(), ends_.file().data_begin()});
    return files;
  }
  std::string sampled_fingerprint() const override {
    if (replaced_.empty()) return base_->sampled_fingerprint();
    Fingerprint print;
    print.add(base_->sampled_fingerprint());
    for (const auto& [name, end] : replaced_) {
      print.add(name);
      for (const SafetensorsEntry* entry : {end->rows, end->tokens}) {
        if (entry != nullptr) print.add(entry->bytes.data(), entry->bytes.size());
      }
      for (const int64_t index : end->indices) print.add(static_cast<uint64_t>(index));
    }
    return print.hex();
  }

  tokenizer::Tokenizer tokenizer() const override {
    return text_directory_.empty() ? base_->tokenizer()
                                   : tokenizer::Tokenizer::from_directory(text_directory_);
  }
  templates::RenderOptions render_defaults() const override {
    const templates::RenderOptions texts = base_->render_defaults();
    return text_directory_.empty() ? texts : joined(texts, read_special_texts(text_directory_));
  }

 private:
  void copy(const SafetensorsEntry& entry, DType dtype, std::byte* to) const {
    convert(*float_dtype(entry.dtype), entry.bytes.data(), dtype, to,
            entry.shape[0] * entry.shape[1]);
    ends_.file().release(entry.bytes);
  }

  /// Adds a separate head after the last tensor of the text model.
  void part_head() {
    TensorInfo head = tensors_.at(0);
    SFTRUN_CHECK_EQ(head.name, ends_.embedding().tensor());
    std::vector<spec::TensorSpec> of_text = spec::tensor_specs(arch_);
    std::erase_if(of_text, [](const spec::TensorSpec& tensor) { return tensor.projector >= 0; });
    const auto last = std::ssize(of_text);
    arch_.tie_word_embeddings = false;
    head.name = ends_.head().tensor();
    head.stored_name.clear();
    tensors_.insert(tensors_.begin() + last, std::move(head));
  }

  AdapterVocabulary ends_;
  std::map<std::string, const SavedRows*> replaced_;
  fs::path text_directory_;
};

std::optional<int64_t> new_eos(const Checkpoint& base, const tokenizer::Tokenizer& tokenizer,
                               const fs::path& adapter) {
  const std::optional<tokenizer::TokenId> eos =
      tokenizer.token_to_id(read_special_texts(adapter).eos_token);
  const std::vector<int64_t>& known = base.arch().eos_token_ids;
  if (!eos || std::find(known.begin(), known.end(), *eos) != known.end()) return std::nullopt;
  return *eos;
}

}  // namespace

namespace {

AdapterBase with_own_projectors(const fs::path& base_path, const fs::path& adapter) {
  std::shared_ptr<const Checkpoint> base = Checkpoint::open(base_path);
  const std::vector<FeatureProjector> projectors = read_adapter_projectors(*base, adapter);
  std::shared_ptr<const Checkpoint> model = with_projectors(std::move(base), projectors);
  if (auto score = read_score(adapter)) model = with_score(std::move(model), std::move(*score));
  return {.checkpoint = std::move(model)};
}

}  // namespace

AdapterBase open_adapter_base(const fs::path& base_path, const fs::path& adapter) {
  AdapterBase opened = with_own_projectors(base_path, adapter);
  const Checkpoint& base = *opened.checkpoint;
  AdapterVocabulary ends(base, adapter);
  const auto tokenizer = own_tokenizer(base, base_path, adapter, ends.vocab_size());
  if (ends.are_empty() && !tokenizer) return opened;
  opened.is_resized = ends.vocab_size() != base.arch().vocab_size;
  for (const SavedRows* end : {&ends.embedding(), &ends.head()}) {
    if (!end->is_empty()) opened.replaced.insert(end->tensor());
  }
  if (tokenizer) {
    opened.text_directory = adapter;
    opened.new_eos = new_eos(base, *tokenizer, adapter);
  }
  auto replaced = std::make_shared<ReplacedCheckpoint>(opened.checkpoint, std::move(ends));
  if (tokenizer) replaced->take_text(adapter, opened.new_eos);
  opened.checkpoint = std::move(replaced);
  return opened;
}

void require_own_base(const Checkpoint& base, const fs::path& base_path, const fs::path& adapter) {
  const AdapterVocabulary ends(base, adapter);
  if (ends.are_empty()) {
    if (own_tokenizer(base, base_path, adapter, ends.vocab_size())) {
      log::warn(
          "{}: the adapter's tokenizer differs from the base's; using the base's. To keep the "
          "adapter's tokens, merge the adapter (sftrun merge) and train the merged model",
          adapter.string());
    }
    return;
  }
  throw DataError(
      "the adapter replaces rows of the base's embedding or head (resized vocabulary or trained "
      "tokens)",
      adapter.string(), "merge it into its base (sftrun merge) and train the merged model");
}

}  // namespace sftrun::weights
