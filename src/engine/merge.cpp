#include <ATen/Parallel.h>

#include <filesystem>
#include <optional>

#include "commands.h"
#include "merge_difference.h"
#include "merged_tensor.h"
#include "quantized_tensors.h"
#include "session.h"
#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/core/finite.h"
#include "sftrun/core/log.h"
#include "sftrun/core/new_directory.h"
#include "sftrun/model/adapter_io.h"
#include "sftrun/weights/adapter_base.h"
#include "sftrun/weights/gguf_export.h"
#include "sftrun/weights/gguf_quantize.h"
#include "sftrun/weights/hf_text_files.h"
#include "sftrun/weights/ollama_modelfile.h"
#include "sftrun/weights/safetensors.h"

/// An adapter folded into its base, tensor by tensor: the memory of one tensor, whatever the
/// model's size.
namespace sftrun::engine {
namespace fs = std::filesystem;
namespace {

struct MergeRequest {
  fs::path base, adapter, output;
  std::string dtype, format;
  uint64_t max_shard_bytes = 0;
  // Of a merged model in 4 or 8 bits.
  std::optional<int64_t> block_size;
  bool no_double_quant = false;
  std::vector<std::string> skip_modules;

  explicit MergeRequest(const nlohmann::json& request)
      : base(request.at("model").get<std::string>()),
        adapter(request.at("adapter").get<std::string>()),
        output(request.at("output").get<std::string>()),
        dtype(request.at("dtype").get<std::string>()),
        format(request.at("format").get<std::string>()),
        max_shard_bytes(static_cast<uint64_t>(request.at("max_shard_size").get<int64_t>())),
        block_size(get<int64_t>(request, "block_size")),
        no_double_quant(request.at("no_double_quant").get<bool>()),
        skip_modules(request.at("skip_modules").get<std::vector<std::string>>()) {}
};

/// How a merged directory's weights are stored: as `sftrun quantize` would store the dense one's.
struct Storage {
  DType dtype = DType::kF32;  ///< of what is not quantised, and of what is when it is unpacked
  std::optional<kernels::QuantOptions> quant;
  QuantizedModules modules;  ///< of quant
};

/// Blocks are those of a base that is quantised itself, and its modules that are not stay so.
/// @param dense names or parts of names of others
void take_from_base(Storage& storage, const weights::Checkpoint& base,
                    std::vector<std::string> dense) {
  bool is_quantised = false;
  for (const weights::TensorInfo& info : base.tensors()) {
    if (!storage.modules.take(info)) continue;
    const auto packed = base.packed(info.name);
    const auto* matrix = packed ? std::get_if<weights::FourBits>(&*packed) : nullptr;
    const bool is_in_eight = packed && std::holds_alternative<weights::EightBitRows>(*packed);
    if (matrix == nullptr && !is_in_eight) {
      dense.push_back(info.name.substr(0, info.name.rfind('.')));
      continue;
    }
    is_quantised = true;
    if (is_in_eight) continue;
    storage.quant->block_size = matrix->block_size;
    storage.quant->nested = matrix->nested;
  }
  if (is_quantised) storage.modules = choose_modules(base.arch(), dense);
}

Storage storage_of(const MergeRequest& request, const weights::Checkpoint& base) {
  const auto format = kernels::quant_format(request.dtype);
  if (!format) return {.dtype = dtype_to_store(request.dtype, base)};
  Storage storage{.dtype = dtype_to_store("auto", base),
                  .quant = kernels::QuantOptions{.format = *format},
                  .modules = choose_modules(base.arch(), request.skip_modules)};
  storage.modules.require_used();
  take_from_base(storage, base, request.skip_modules);
  if (request.block_size) storage.quant->block_size = *request.block_size;
  if (request.no_double_quant) storage.quant->nested = false;
  return storage;
}

/// The tokenizer that tokens were added to, where the adapter brings one; else the base's.
void write_texts(const MergeRequest& request, const weights::AdapterBase& base,
                 const fs::path& directory) {
  const weights::Checkpoint& checkpoint = *base.checkpoint;
  auto chat_template = weights::read_chat_template(request.adapter);
  if (base.text_directory && !chat_template) chat_template = checkpoint.chat_template();
  model::write_text_files(checkpoint, base.text_directory.value_or(request.base), directory,
                          chat_template);
  if (base.text_directory) weights::copy_generation_config(request.base, directory);
  if (base.new_eos) weights::add_eos(directory, *base.new_eos);
}

/// @return how the weights are stored, in words
std::string write_directory(const MergeRequest& request, const weights::AdapterBase& opened,
                            MergedWeights& merged, const Storage& storage,
                            const fs::path& directory) {
  const weights::Checkpoint& base = *opened.checkpoint;
  std::optional<QuantizedTensors> quantised;
  if (storage.quant) quantised.emplace(base, *storage.quant, storage.dtype);
  std::vector<weights::TensorToWrite> tensors;
  const size_t last_of_text = spec::tensor_specs(base.arch()).size() - 1;
  for (size_t i = 0; i < base.tensors().size(); ++i) {
    const weights::TensorInfo& info = base.tensors()[i];
    std::function<at::Tensor()> values;
    if (merged.is_changed(info.name)) values = [&merged, &info] { return merged.of(info); };
    if (storage.quant && storage.modules.take(info))
      quantised->add(info, values, tensors);
    else
      model::add_stored(base, info, storage.dtype, values, tensors);
    if (i == last_of_text && merged.parts_head()) tensors.push_back(merged.head(storage.dtype));
  }
  weights::refuse_overflow(tensors);
  weights::write_sharded_safetensors(directory, tensors, request.max_shard_bytes);
  model::write_config(base, request.base, directory, storage.dtype, merged.parts_head(),
                      quantised ? quantised->config(storage.modules) : nullptr);
  write_texts(request, opened, directory);
  return quantised
             ? fmt::format("{} matrices in {}, the rest in {}", storage.modules.quantised.size(),
                           request.dtype, name_of(storage.dtype))
             : std::string(name_of(storage.dtype));
}

/// Blocks have no codes for anything else.   @param values fp32, contiguous
void require_finite(const std::string& name, const at::Tensor& values) {
  if (all_finite({values.const_data_ptr<float>(), static_cast<size_t>(values.numel())})) return;
  throw DataError(
      fmt::format("the merged tensor `{}` holds values that are no finite numbers", name), {},
      "the base, or the adapter's training, is broken: look at the run's losses");
}

/// Rows by rows on all threads: each quantises whole rows.
void quantize_piece(const weights::GgufPiece& piece, const weights::GgmlTypeInfo& type,
                    const at::Tensor& source, std::byte* destination) {
  constexpr int64_t kNumbersAtATime = 1 << 16;
  const int64_t row_size = piece.row_size,
                row_bytes = row_size / type.block_size * type.block_bytes,
                grain = std::max<int64_t>(1, kNumbersAtATime / std::max<int64_t>(1, row_size));
  at::parallel_for(0, piece.num_rows(), grain, [&](int64_t begin, int64_t end) {
    std::vector<float> rows(static_cast<size_t>(std::min(grain, end - begin) * row_size));
    for (int64_t row = begin; row < end; row += grain) {
      const int64_t count = std::min(grain, end - row);
      weights::fill_rows(piece, source.const_data_ptr<float>(), row, count, rows.data());
      weights::quantize(type, rows.data(), count * row_size, destination + row * row_bytes);
    }
  });
}

/// "mine" of models/mine and of models/mine/.
std::string name_of_directory(const fs::path& directory) {
  const fs::path path = fs::absolute(directory).lexically_normal();
  const fs::path name = path.has_filename() ? path.filename() : path.parent_path().filename();
  return name.empty() ? "model" : name.string();
}

weights::GgufPlan plan_file(const MergeRequest& request, const weights::AdapterBase& base,
                            const MergedWeights& merged) {
  return weights::plan_gguf(
      *base.checkpoint,
      {.base_path = request.base,
       .mix = request.dtype,
       .name = name_of_directory(request.output),
       .chat_template = weights::read_chat_template(request.adapter),
       .is_changed = [&](const std::string& tensor) { return merged.is_changed(tensor); },
       .parts_head = merged.parts_head(),
       .has_own_tokens = base.text_directory.has_value() || base.is_resized});
}

weights::GgufTensorToWrite computed(const weights::GgufPiece& piece,
                                    const weights::GgmlTypeInfo& type, const std::string& name,
                                    const std::function<at::Tensor()>& values) {
  return {piece.name, piece.shape, type, [&piece, &type, name, values](std::byte* destination) {
            const at::Tensor of = values();
            require_finite(name, of);
            quantize_piece(piece, type, of, destination);
          }};
}

void write_modelfile(const weights::GgufPlan& plan, const weights::Checkpoint& base,
                     const fs::path& directory, const std::string& file) {
  weights::OllamaModelfile modelfile =
      weights::ollama_modelfile(base, plan.chat_template, plan.added_bos);
  modelfile.from = "./" + file;
  modelfile.write_to(directory);
}

std::string write_file(const MergeRequest& request, const weights::GgufPlan& plan,
                       const weights::Checkpoint& base, MergedWeights& merged,
                       const fs::path& directory) {
  std::vector<weights::GgufTensorToWrite> tensors = plan.beside;
  for (size_t i = 0; i < plan.pieces.size(); ++i) {
    const weights::GgufPiece& piece = plan.pieces[i];
    const weights::GgmlTypeInfo& type = plan.types[i];
    if (merged.parts_head() && i + 1 == plan.pieces.size()) {
      tensors.push_back(
          computed(piece, type, "lm_head.weight", [&] { return merged.head_values(); }));
      continue;
    }
    const weights::TensorInfo& info = base.tensors().at(piece.source);
    const std::span<const std::byte> stored = plan.stored[i];
    if (!stored.empty() && !merged.is_changed(info.name)) {
      tensors.push_back({piece.name, piece.shape, type, [&plan, stored](std::byte* destination) {
                           std::copy(stored.begin(), stored.end(), destination);
                           plan.base->release(stored);
                         }});
    } else {
      tensors.push_back(computed(piece, type, info.name, [&] { return merged.of(info); }));
    }
  }
  const std::string file =
      fmt::format("{}-{}.gguf", name_of_directory(request.output), plan.type_name);
  make_directories(directory);
  weights::write_gguf(directory / file, plan.metadata, tensors);
  write_modelfile(plan, base, directory, file);
  return file;
}

/// Than 8.
bool is_in_fewer_bits(const weights::GgufPlan& plan) {
  return std::any_of(plan.types.begin(), plan.types.end(), weights::has_fewer_than_8_bits);
}
bool is_in_fewer_bits(const Storage& storage) {
  return storage.quant && kernels::is_4bit(storage.quant->format);
}

void say_what_is_replaced(const weights::AdapterBase& base) {
  for (const std::string& tensor : base.replaced) {
    log::info("{}: rows are the adapter's own ({})", tensor,
              base.is_resized ? fmt::format("resized to {}", base.checkpoint->arch().vocab_size)
                              : std::string("of the base's number"));
  }
  if (base.text_directory) log::info("the tokenizer is the adapter's own");
}

}  // namespace

int run_merge(const nlohmann::json& request_json) {
  set_threads(request_json);
  choose_compute("cpu", "fp32", 0);
  const MergeRequest request(request_json);
  const weights::AdapterBase opened = weights::open_adapter_base(request.base, request.adapter);
  const std::shared_ptr<const weights::Checkpoint>& base = opened.checkpoint;
  warn_of_another_base(request.adapter, *base);
  const auto config = weights::load_adapter_config(request.adapter, base->arch());
  const auto adapter = weights::load_adapter(request.adapter, config, base->arch());
  MergedWeights merged(opened, adapter, config.pissa);
  std::optional<weights::GgufPlan> plan;  // what it throws, it throws before there is a directory
  if (request.format == "gguf") plan = plan_file(request, opened, merged);
  const Storage storage = plan ? Storage{} : storage_of(request, *base);
  std::string stored;
  log::info("merging {} modules of {} with {}", adapter.lora.size(), request.adapter.string(),
            request.base.string());
  write_new_directory(request.output, "the merged model", [&](const fs::path& directory) {
    stored = plan ? write_file(request, *plan, *base, merged, directory)
                  : write_directory(request, opened, merged, storage, directory);
  });
  log::info("wrote {} ({})", request.output.string(), stored);
  if (plan) {
    log::info("Ollama: `ollama create {} -f {}`", name_of_directory(request.output),
              (request.output / "Modelfile").string());
  }
  say_what_is_replaced(opened);
  if (!adapter.saved.empty())
    log::info("{} tensors are the adapter's own (modules_to_save)", adapter.saved.size());
  report_difference(
      {.base = base,
       .base_path = request.base,
       .adapter = request.adapter,
       .output = request.output,
       .written = plan ? request.output / stored : request.output,
       .stored = stored,
       .is_in_fewer_bits = plan ? is_in_fewer_bits(*plan) : is_in_fewer_bits(storage)},
      request_json);
  return 0;
}

}  // namespace sftrun::engine
