#include <fmt/format.h>

#include <array>

#include "choices.h"
#include "validate/checks.h"

namespace sftrun::config::relations {
namespace {

constexpr auto kNames = std::to_array<Rule>({
    {[](Run run) { return run.model.name.empty(); },
     "`model.name` is missing",
     {},
     "add `name:` below `model:`: a directory in Hugging Face layout or a .gguf file"},
    {[](Run run) { return run.data.train.empty(); },
     "`data.train` is missing",
     {},
     "add `train:` below `data:`: a file, as JSON lines, CSV or Parquet"},
});

/// Kernels of attention by their words in `model.attention`.
constexpr auto kDeterminism = std::to_array<Rule>({
    {[](Run run) {
       return run.train.deterministic && (run.model.attention == AttentionChoice::kCudnn ||
                                          run.model.attention == AttentionChoice::kMeasure);
     },
     [](Run run) {
       return fmt::format(
           "`train.deterministic` needs attention that sums in a fixed order, and "
           "`model.attention: {}` {}",
           word_of(run.model.attention),
           run.model.attention == AttentionChoice::kMeasure ? "chooses kernels by their time"
                                                            : "does not");
     },
     {"train.deterministic", "model.attention"},
     "remove model.attention"},
});

void check_half(Checks& checks, const char* key, std::optional<bool> asked, DTypeChoice dtype,
                const char* name) {
  const DTypeChoice chosen = checks.run().model.dtype;
  if (asked == true && chosen != DTypeChoice::kAuto && chosen != dtype) {
    checks.error(fmt::format("`{}` is true, but `model.dtype` is {}", key, word_of(chosen)),
                 {key, "model.dtype"},
                 fmt::format("set model.dtype to {} or remove {}", name, key));
  }
  if (asked == false && chosen == dtype) {
    checks.error(fmt::format("`{}` is false, but `model.dtype` is {}", key, name),
                 {key, "model.dtype"}, fmt::format("remove {} or set model.dtype to auto", key));
  }
}

}  // namespace

void check_names(Checks& checks) {
  checks.require(kNames);
  checks.require(kDeterminism);
}

void check_dtype(Checks& checks) {
  const auto& [bf16, fp16] = std::pair(checks.run().train.bf16, checks.run().train.fp16);
  if (bf16 == true && fp16 == true) {
    checks.error("`train.bf16` and `train.fp16` are both true", {"train.bf16", "train.fp16"},
                 "keep one of them");
    return;
  }
  check_half(checks, "train.bf16", bf16, DTypeChoice::kBf16, "bf16");
  check_half(checks, "train.fp16", fp16, DTypeChoice::kFp16, "fp16");
}

}  // namespace sftrun::config::relations
