#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cstring>
#include <filesystem>
#include <limits>
#include <set>

#include "commands.h"
#include "session.h"
#include "sftrun/core/error.h"
#include "sftrun/core/log.h"
#include "sftrun/core/new_directory.h"
#include "sftrun/core/strings.h"
#include "sftrun/kernels/quant.h"
#include "sftrun/model/adapter_io.h"
#include "sftrun/spec/quantised_modules.h"
#include "sftrun/weights/safetensors.h"

/// A model in 4 bits on disk, as transformers + bitsandbytes save and load it. One matrix at a time
/// is in memory.
namespace sftrun::engine {
namespace fs = std::filesystem;
using nlohmann::ordered_json;
namespace {

/// Which modules become 4 bits, and which linear modules do not.
struct Modules {
  std::set<std::string> quantised;  ///< full names
  std::set<std::string> dense;      ///< as transformers' llm_int8_skip_modules has them
  std::set<std::string> unused;     ///< of those to skip: that name no module
};

Modules choose_modules(const spec::ArchSpec& arch, const std::vector<std::string>& skipped) {
  Modules modules{.dense = {"lm_head"}, .unused = {skipped.begin(), skipped.end()}};
  const auto take = [&](const std::string& name) {
    bool is_skipped = false;
    for (const std::string& part : skipped) {
      if (!has_path_part(name, part)) continue;
      is_skipped = true;
      modules.unused.erase(part);
    }
    (is_skipped ? modules.dense : modules.quantised).insert(name);
  };
  modules.unused.erase("lm_head");
  for (const std::string& name : spec::quantised_modules(arch)) take(name);
  for (int64_t layer = 0; layer < arch.num_layers; ++layer) {
    for (const spec::LinearSpec& linear : spec::layer_linears(arch, layer)) {
      if (linear.slot == spec::LinearSlot::kRouter) modules.dense.insert(linear.module);
    }
  }
  return modules;
}

/// The tensors of one matrix in 4 bits: the last one asked for is kept, as its tensors are written
/// one after the other.
class QuantizedTensors {
 public:
  QuantizedTensors(const weights::Checkpoint& base, const kernels::QuantOptions& options,
                   DType dtype)
      : base_(base), options_(options), dtype_(dtype) {}

  void add(const weights::TensorInfo& info, std::vector<weights::TensorToWrite>& tensors) {
    const std::string& name = info.file_name();
    const int64_t numel = info.numel(),
                  blocks = (numel + options_.block_size - 1) / options_.block_size;
    const auto put = [&](const std::string& part, DType dtype, std::vector<int64_t> shape,
                         at::Tensor (*of)(const kernels::QuantizedMatrix&)) {
      tensors.push_back({name + part, dtype, std::move(shape), [this, &info, of](void* to) {
                           const at::Tensor values = of(quantised(info)).contiguous();
                           std::memcpy(to, values.const_data_ptr(), values.nbytes());
                         }});
    };
    put("", DType::kU8, {(numel + 1) / 2, 1}, [](const auto& matrix) { return matrix.packed; });
    put(".quant_map", DType::kF32, {16}, [](const auto& matrix) {
      const auto table = kernels::quant_table(matrix.format);
      return at::tensor(at::ArrayRef<float>(table.data(), table.size()));
    });
    if (options_.nested) {
      put(".absmax", DType::kU8, {blocks}, [](const auto& matrix) { return matrix.codes; });
      put(".nested_absmax", DType::kF32,
          {(blocks + weights::kNestedBlock - 1) / weights::kNestedBlock},
          [](const auto& matrix) { return matrix.nested_absmax; });
      put(".nested_quant_map", DType::kF32, {weights::kNestedBlock},
          [](const auto& /*matrix*/) { return kernels::nested_map(); });
    } else {
      put(".absmax", DType::kF32, {blocks}, [](const auto& matrix) { return matrix.absmax; });
    }
    add_state(info, tensors);
  }

 private:
  /// As long as with the longest offset: how long it is must be known before it is.
  void add_state(const weights::TensorInfo& info, std::vector<weights::TensorToWrite>& tensors) {
    const std::string format = options_.format == kernels::QuantFormat::kFp4 ? "fp4" : "nf4";
    ordered_json state{{"quant_type", format},
                       {"blocksize", options_.block_size},
                       {"dtype", model::torch_dtype_name(dtype_)},
                       {"shape", info.shape}};
    if (options_.nested) {
      state["nested_blocksize"] = weights::kNestedBlock;
      state["nested_dtype"] = "float32";
      state["nested_offset"] = -std::numeric_limits<double>::max();
    }
    const size_t length = state.dump().size();
    tensors.push_back({info.file_name() + ".quant_state.bitsandbytes__" + format,
                       DType::kU8,
                       {static_cast<int64_t>(length)},
                       [this, &info, state, length](void* to) {
                         ordered_json own = state;
                         if (options_.nested)
                           own["nested_offset"] = static_cast<double>(quantised(info).offset);
                         std::string text = own.dump();
                         text.resize(length, ' ');
                         std::memcpy(to, text.data(), length);
                       }});
  }

  const kernels::QuantizedMatrix& quantised(const weights::TensorInfo& info) {
    if (name_ == info.name) return matrix_;
    const at::NoGradGuard no_grad;
    const at::Tensor values = at::empty(info.shape, model::torch_dtype(dtype_));
    base_.read(info.name, dtype_, values.data_ptr());
    matrix_ = kernels::quantize(values, options_);
    name_ = info.name;
    return matrix_;
  }

  const weights::Checkpoint& base_;
  kernels::QuantOptions options_;
  DType dtype_;
  std::string name_;
  kernels::QuantizedMatrix matrix_;
};

/// As transformers' BitsAndBytesConfig writes itself.
ordered_json quantization_config(const kernels::QuantOptions& options, const Modules& modules,
                                 DType dtype) {
  const bool fp4 = options.format == kernels::QuantFormat::kFp4;
  return {{"quant_method", "bitsandbytes"},
          {"load_in_4bit", true},
          {"load_in_8bit", false},
          {"bnb_4bit_quant_type", fp4 ? "fp4" : "nf4"},
          {"bnb_4bit_use_double_quant", options.nested},
          {"bnb_4bit_compute_dtype", model::torch_dtype_name(dtype)},
          {"bnb_4bit_quant_storage", "uint8"},
          {"llm_int8_skip_modules", modules.dense}};
}

void refuse_quantised(const weights::Checkpoint& base, const fs::path& path) {
  for (const weights::TensorInfo& tensor : base.tensors()) {
    const auto packed = base.packed(tensor.name);
    if (!packed || !std::holds_alternative<weights::FourBits>(*packed)) continue;
    throw DataError("the model is in 4 bits already", path.string(),
                    "quantise the model that it was made from");
  }
}

}  // namespace

int run_quantize(const nlohmann::json& request) {
  set_threads(request);
  choose_compute("cpu", "fp32", 0);
  const fs::path base_path = request.at("model").get<std::string>(),
                 output = request.at("output").get<std::string>();
  const auto base = weights::Checkpoint::open(base_path);
  refuse_quantised(*base, base_path);
  const kernels::QuantOptions options{.format = request.at("method") == "fp4"
                                                    ? kernels::QuantFormat::kFp4
                                                    : kernels::QuantFormat::kNf4,
                                      .block_size = request.at("block_size").get<int64_t>(),
                                      .nested = request.at("double_quant").get<bool>()};
  const Modules modules =
      choose_modules(base->arch(), request.at("skip_modules").get<std::vector<std::string>>());
  if (!modules.unused.empty()) {
    throw ConfigError(fmt::format("no module of the model is named `{}`", *modules.unused.begin()),
                      "--skip-modules on the command line",
                      "name modules as the model does: down_proj, or layers.0.mlp");
  }
  const DType dtype = dtype_to_store(request.at("dtype").get<std::string>(), *base);
  QuantizedTensors quantised(*base, options, dtype);
  std::vector<weights::TensorToWrite> tensors;
  for (const weights::TensorInfo& info : base->tensors()) {
    const bool is_weight = info.name.ends_with(".weight");
    const std::string module = is_weight ? info.name.substr(0, info.name.size() - 7) : info.name;
    if (modules.quantised.contains(module))
      quantised.add(info, tensors);
    else
      model::add_stored(*base, info, dtype, {}, tensors);
  }
  write_new_directory(output, "the quantised model", [&](const fs::path& directory) {
    weights::write_sharded_safetensors(
        directory, tensors, static_cast<uint64_t>(request.at("max_shard_size").get<int64_t>()));
    model::write_config(*base, base_path, directory, dtype, /*parts_head=*/false,
                        quantization_config(options, modules, dtype));
    model::write_text_files(*base, base_path, directory, std::nullopt);
  });
  log::info("wrote {}: {} matrices in {}, the rest in {}", output.string(),
            modules.quantised.size(), request.at("method").get<std::string>(), name_of(dtype));
  return 0;
}

}  // namespace sftrun::engine
