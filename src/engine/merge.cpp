#include <ATen/Parallel.h>

#include <cstdio>
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
#include "sftrun/core/strings.h"
#include "sftrun/core/units.h"
#include "sftrun/model/adapter_io.h"
#include "sftrun/weights/adapter_base.h"
#include "sftrun/weights/gguf_export.h"
#include "sftrun/weights/gguf_quantize.h"
#include "sftrun/weights/hf_text_files.h"
#include "sftrun/weights/ollama_modelfile.h"
#include "sftrun/weights/safetensors.h"
#include "sftrun/weights/weights_summary.h"

/// An adapter folded into its base, or a model without one converted, tensor by tensor: the memory
/// of one tensor, whatever the model's size.
namespace sftrun::engine {
namespace fs = std::filesystem;
namespace {

struct MergeRequest {
  fs::path base, output;
  std::optional<fs::path> adapter;
  std::string dtype, format;
  bool as_stored = false, overwrite = false, json = false;
  uint64_t max_shard_bytes = 0;
  // Of a merged model in 4 or 8 bits.
  std::optional<int64_t> block_size;
  bool no_double_quant = false;
  std::vector<std::string> skip_modules;

  explicit MergeRequest(const nlohmann::json& request)
      : base(request.at("model").get<std::string>()),
        output(request.at("output").get<std::string>()),
        adapter(get<std::string>(request, "adapter")),
        dtype(request.at("dtype").get<std::string>()),
        format(request.at("format").get<std::string>()),
        as_stored(request.at("as_stored").get<bool>()),
        overwrite(request.at("overwrite").get<bool>()),
        json(request.at("json").get<bool>()),
        max_shard_bytes(static_cast<uint64_t>(request.at("max_shard_size").get<int64_t>())),
        block_size(get<int64_t>(request, "block_size")),
        no_double_quant(request.at("no_double_quant").get<bool>()),
        skip_modules(request.at("skip_modules").get<std::vector<std::string>>()) {}

  bool writes_file() const { return format == "gguf" && output.extension() == ".gguf"; }
  std::optional<std::string> chat_template() const {
    return adapter ? weights::read_chat_template(*adapter) : std::nullopt;
  }
};

/// What is written from.
struct Sources {
  weights::AdapterBase base;
  weights::AdapterTensors adapter;  ///< empty: the model alone
  bool pissa = false;
  QuantisedByRun quantised;
  std::string held_in;  ///< what most of the base's matrices were in: "nf4", "Q4_1"; empty: dense
};

/// Whether values that stand for codes of one format are rounded to these codes again.
bool gives_same_codes(QuantFormat of, const std::string& dtype) {
  const QuantFormatInfo* format = find_quant_format(dtype);
  return format != nullptr &&
         (format->format == of || (format->bits == 4 && quant_info(of).bits == 4));
}

Sources open_adapter(const MergeRequest& request) {
  const fs::path& adapter = *request.adapter;
  Sources sources{.base = weights::open_adapter_base(request.base, adapter)};
  const weights::Checkpoint& base = *sources.base.checkpoint;
  warn_of_another_base(adapter, base);
  const auto config = weights::load_adapter_config(adapter, base.arch());
  sources.adapter = weights::load_adapter(adapter, config, base.arch());
  sources.pissa = config.lora.pissa;
  sources.held_in = packed_format(base);
  if (request.as_stored) return sources;
  const auto held = quantised_by_run(adapter, base);
  if (!held) return sources;
  sources.held_in = held->form;
  if (gives_same_codes(held->tuning.quant_options()->format, request.dtype)) {
    log::info(
        "merging into the base's own values: the dequantised ones that the adapter was trained on "
        "would be rounded to the same codes again, and most of the update would be lost");
    return sources;
  }
  sources.quantised = matrices_quantised(held->tuning, base);
  log::info(
      "merging into the values that the adapter was trained on: the base, dequantised from {} "
      "(--as-stored: into its own values)",
      held->words());
  return sources;
}

Sources open_sources(const MergeRequest& request) {
  if (request.adapter) {
    Sources sources = open_adapter(request);
    log::info("merging {} modules of {} with {}", sources.adapter.lora.size(),
              request.adapter->string(), request.base.string());
    return sources;
  }
  if (request.format == "gguf" && request.dtype == "auto" && !fs::is_directory(request.base)) {
    throw ConfigError("the model is a GGUF file already, and there is no adapter to merge",
                      request.base.string(),
                      "name a type with --dtype, or a directory to write safetensors into");
  }
  log::info("converting {}", request.base.string());
  return {.base = {.checkpoint = weights::Checkpoint::open(request.base)}};
}

/// How a merged directory's weights are stored: as `sftrun quantize` would store the dense one's.
struct Storage {
  DType dtype = DType::kF32;  ///< of what is not quantised, and of what is when it is unpacked
  std::optional<QuantOptions> quant;
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
  const QuantFormatInfo* format = find_quant_format(request.dtype);
  if (format == nullptr) return {.dtype = dtype_to_store(request.dtype, base)};
  Storage storage{.dtype = dtype_to_store("auto", base),
                  .quant = QuantOptions{.format = format->format},
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
  auto chat_template = request.chat_template();
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
  throw DataError(fmt::format("the merged tensor `{}` has NaN or infinite values", name), {},
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

/// "mine" of models/mine, of models/mine/ and of mine.gguf.
std::string name_of_output(const MergeRequest& request) {
  const fs::path path = fs::absolute(request.output).lexically_normal();
  const fs::path name = request.writes_file() ? path.stem()
                        : path.has_filename() ? path.filename()
                                              : path.parent_path().filename();
  return name.empty() ? "model" : name.string();
}

weights::GgufPlan plan_file(const MergeRequest& request, const weights::AdapterBase& base,
                            const MergedWeights& merged) {
  return weights::plan_gguf(
      *base.checkpoint,
      {.base_path = request.base,
       .mix = request.dtype,
       .name = name_of_output(request),
       .chat_template = request.chat_template(),
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

void write_file(const weights::GgufPlan& plan, const weights::Checkpoint& base,
                MergedWeights& merged, const fs::path& file) {
  std::vector<weights::GgufTensorToWrite> tensors = plan.beside;
  for (size_t i = 0; i < plan.pieces.size(); ++i) {
    const weights::GgufPiece& piece = plan.pieces[i];
    const weights::GgmlTypeInfo& type = plan.types[i];
    if (merged.parts_head() && i + 1 == plan.pieces.size()) {
      tensors.push_back(
          computed(piece, type, spec::kHeadTensor, [&] { return merged.head_values(); }));
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
  make_directories(fs::absolute(file).parent_path());
  weights::write_gguf(file, plan.metadata, tensors);
}

/// Than 8.
bool is_in_fewer_bits(const weights::GgufPlan& plan) {
  return std::any_of(plan.types.begin(), plan.types.end(), weights::has_fewer_than_8_bits);
}
bool is_in_fewer_bits(const Storage& storage) {
  return storage.quant && quant_info(storage.quant->format).bits == 4;
}

void say_what_is_replaced(const weights::AdapterBase& base) {
  for (const std::string& tensor : base.replaced) {
    log::info("{}: rows are the adapter's own ({})", tensor,
              base.is_resized ? fmt::format("resized to {}", base.checkpoint->arch().vocab_size)
                              : std::string("of the base's number"));
  }
  if (base.text_directory) log::info("the tokenizer is the adapter's own");
}

/// As --dtype names it.
std::string dtype_word(DType dtype) {
  return dtype == DType::kF32 ? "f32" : dtype == DType::kF16 ? "f16" : "bf16";
}

/// What was written.
struct Written {
  fs::path path;      ///< a directory, or a .gguf file
  std::string dtype;  ///< as --dtype names it; "auto": every tensor in the type that it had
  std::string words;  ///< how the weights are stored
  bool is_in_fewer_bits = false;
  bool in_more_than_base = false;  ///< bits, unasked
};

template <class Write>
void write_output(const MergeRequest& request, const Write& write) {
  write_new_directory(request.output, "the merged model", write,
                      request.overwrite ? Existing::kReplace : Existing::kMustBeEmpty);
}

/// Whether some of a GGUF base's tensors are stored in another type than there.
bool changes_types(const weights::GgufPlan& plan) {
  for (size_t i = 0; i < plan.pieces.size(); ++i) {
    const weights::GgufTensor* tensor = plan.base->find(plan.pieces[i].name);
    if (tensor != nullptr && tensor->type.id != plan.types[i].id) return true;
  }
  return false;
}

Written describe(const weights::GgufPlan& plan, const MergeRequest& request) {
  Written written{.dtype = ascii_lower(plan.type_name),
                  .words = plan.type_name,
                  .is_in_fewer_bits = is_in_fewer_bits(plan),
                  .in_more_than_base = request.dtype == "auto"};
  if (!plan.base || request.dtype != "auto") return written;
  written.dtype = "auto";
  written.in_more_than_base = changes_types(plan);
  written.words = written.in_more_than_base ? "Q8_0 where the adapter changes it" : "as the base";
  return written;
}

/// The file that --output names stands alone; in a directory there is a Modelfile beside it.
Written write_gguf_model(const MergeRequest& request, const weights::AdapterBase& base,
                         MergedWeights& merged) {
  const weights::GgufPlan plan = plan_file(request, base, merged);
  Written written = describe(plan, request);
  written.path = request.output;
  if (request.writes_file()) {
    write_file(plan, *base.checkpoint, merged, request.output);
    return written;
  }
  const std::string name = name_of_output(request),
                    file = fmt::format("{}-{}.gguf", name, plan.type_name);
  write_output(request, [&](const fs::path& directory) {
    write_file(plan, *base.checkpoint, merged, directory / file);
    write_modelfile(plan, *base.checkpoint, directory, file);
  });
  written.path /= file;
  log::info("Ollama: `ollama create {} -f {}`", name, (request.output / "Modelfile").string());
  return written;
}

Written write_safetensors_model(const MergeRequest& request, const weights::AdapterBase& base,
                                MergedWeights& merged) {
  const Storage storage = storage_of(request, *base.checkpoint);
  Written written{.path = request.output,
                  .dtype = storage.quant ? request.dtype : dtype_word(storage.dtype),
                  .is_in_fewer_bits = is_in_fewer_bits(storage),
                  .in_more_than_base = request.dtype == "auto"};
  write_output(request, [&](const fs::path& directory) {
    written.words = write_directory(request, base, merged, storage, directory);
  });
  return written;
}

void say_what_was_written(const MergeRequest& request, const Sources& sources,
                          const Written& written) {
  log::info("wrote {} ({}, {})", written.path.string(), written.words,
            format_bytes(weights::summarize_weights(written.path).bytes));
  if (!sources.held_in.empty() && written.in_more_than_base) {
    log::info(
        "the base was in {}; the merged model is {}; {} stores fewer bits and changes more",
        sources.held_in, written.words,
        request.format == "gguf" ? "--dtype q4_k_m or q4_0" : "--dtype nf4, fp4, fp8 or int8");
  }
  say_what_is_replaced(sources.base);
  if (!sources.adapter.saved.empty()) {
    log::info("{} tensors are the adapter's own (modules_to_save)", sources.adapter.saved.size());
  }
}

}  // namespace

int run_merge(const nlohmann::json& request_json) {
  set_threads(request_json);
  choose_compute("cpu", "fp32", 0);
  const MergeRequest request(request_json);
  const Sources sources = open_sources(request);
  MergedWeights merged(sources.base, sources.adapter, sources.pissa, sources.quantised);
  const Written written = request.format == "gguf"
                              ? write_gguf_model(request, sources.base, merged)
                              : write_safetensors_model(request, sources.base, merged);
  say_what_was_written(request, sources, written);
  nlohmann::ordered_json measured;
  if (request.adapter) {
    measured = report_difference(
        {.base = sources.base.checkpoint,
         .base_path = request.base,
         .adapter = *request.adapter,
         .report_directory = request.writes_file() ? std::nullopt : std::optional(request.output),
         .written = written.path,
         .stored = written.words,
         .is_in_fewer_bits = written.is_in_fewer_bits,
         .as_stored = request.as_stored},
        request_json);
  }
  if (request.json) {
    const auto description =
        weights::describe_written(written.path, request.format, written.dtype, measured);
    std::printf("%s\n", description.dump().c_str());
  }
  return 0;
}

}  // namespace sftrun::engine
