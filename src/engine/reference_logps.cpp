#include "reference_logps.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "evaluated_loss.h"
#include "other_model.h"
#include "sftrun/config/reference_model.h"
#include "sftrun/core/clock.h"
#include "sftrun/core/error.h"
#include "sftrun/core/hash.h"
#include "sftrun/core/log.h"
#include "sftrun/core/plural.h"
#include "sftrun/core/presence.h"
#include "sftrun/data/reference_cache.h"
#include "sftrun/weights/adapter_file.h"
#include "sftrun/weights/fingerprint.h"

namespace sftrun::engine {
namespace {

using Json = nlohmann::ordered_json;

/// The model whose log-probabilities are computed.
struct ReferencePasses {
  const model::Stage& stage;
  const parallel::Mesh& mesh;
  model::PassValues values = model::PassValues::kTrained;
};

/// Calls `use` with the model, which is loaded for it where it is not yet.
/// @return 0, or the exit code of a stop
using GivePasses = std::function<int(const std::function<int(const ReferencePasses&)>& use)>;

/// What the values depend on beside the examples: the key of a cached file.
std::string key_of(const Json& model, const PreparedRun& run, const data::Dataset& dataset) {
  Fingerprint print;
  print.add("reference 1").add(model.dump()).add(data::hash_of_examples(dataset.examples()));
  for (const data::DatasetPart& part : dataset.parts()) print.add(part.media_fingerprint);
  print.add(dtype_name(run.compute.dtype)).add(run.compute.device.is_cuda() ? "cuda" : "cpu");
  return print.hex();
}

/// A data set whose values are not cached.
struct MissingLogps {
  data::Dataset* dataset = nullptr;
  const char* name = "";
  std::string key;
};

/// Those of the run, with empty keys.
std::vector<MissingLogps> datasets_of(PreparedRun& run) {
  std::vector<MissingLogps> datasets;
  if (run.data.train) datasets.push_back({&*run.data.train, "data.train", ""});
  if (run.data.val) datasets.push_back({&*run.data.val, "data.val", ""});
  return datasets;
}

/// On rank 0: what the cache has of each data set. The other ranks get it.
class SharedCache {
 public:
  SharedCache(const PreparedRun& run, Rank& rank)
      : cache_(run.config.data.cache_dir), rank_(rank) {}

  std::optional<std::vector<double>> read(const std::string& key, int64_t size) const {
    std::optional<std::vector<double>> own;
    if (rank_.is_main()) own = cache_.read(key, size);
    if (rank_.of_main(own ? 1 : 0) == 0) return std::nullopt;
    return rank_.comm()
        .all_gather(own.value_or(std::vector<double>(static_cast<size_t>(size))))
        .front();
  }
  void write(const std::string& key, const std::vector<double>& values) const {
    if (rank_.is_main()) cache_.write(key, values);
  }

 private:
  data::ReferenceCache cache_;
  Rank& rank_;
};

/// @throws DataError if the model gives no numbers
void require_numbers(const std::vector<double>& logps, const std::string& name) {
  if (std::ranges::all_of(logps, [](double value) { return std::isfinite(value); })) return;
  throw DataError("log-probabilities of the reference model are NaN or infinite", name,
                  "set model.dtype to fp32; if that does not help, its weights are broken");
}

/// Attaches the values to the run's data sets: from the cache, or of the model.
/// @param name of the model, for messages   @return 0, or the exit code of a stop
int add_logps(PreparedRun& run, Rank& rank, const Json& model, const std::string& name,
              const GivePasses& give) {
  const SharedCache cache(run, rank);
  std::vector<MissingLogps> missing;
  for (MissingLogps of : datasets_of(run)) {
    of.key = key_of(model, run, *of.dataset);
    if (auto logps = cache.read(of.key, of.dataset->examples().size()))
      of.dataset->set_reference_logps(std::move(*logps));
    else
      missing.push_back(of);
  }
  if (missing.empty()) {
    if (rank.is_main()) log::info("reference: log-probabilities by {} are cached", name);
    return 0;
  }
  return give([&](const ReferencePasses& passes) {
    for (const MissingLogps& of : missing) {
      const double begin = monotonic_seconds();
      const int64_t count = of.dataset->examples().size();
      if (rank.is_main())
        log::info("reference: computing log-probabilities of {} of {} by {}",
                  counted(count, "answer"), of.name, name);
      auto logps =
          label_logps(passes.stage, passes.mesh, passes.values, *of.dataset, rank, of.name);
      if (!logps) return rank.told_before_training(rank.stop_of_any_rank());
      require_numbers(*logps, name);
      if (rank.is_main())
        log::info("reference: log-probabilities computed in {:.1f} s", monotonic_seconds() - begin);
      cache.write(of.key, *logps);
      of.dataset->set_reference_logps(std::move(*logps));
    }
    return 0;
  });
}

/// The settings of the run that say how its own model computes.
Json tuning_of(const PreparedRun& run) {
  const Json all = config::identity_settings(run.config);
  Json settings = Json::object();
  for (const auto& [key, value] : all.items())
    if (key.starts_with("tuning.") || key == "train.seed") settings[key] = value;
  return settings;
}

/// The tokens of both models must be the same, as one reads the answers of the other.
/// @throws ConfigError naming the first that differs
void require_same_tokens(const weights::Checkpoint& reference, const PreparedRun& run) {
  const auto& own = *run.text->tokenizer;
  const data::TextModel of_reference = text_model_of(reference, "");
  const int64_t used =
      std::min(own.vocab_size(), run.text->num_embeddings.value_or(own.vocab_size()));
  if (of_reference.num_embeddings && *of_reference.num_embeddings < used)
    throw ConfigError(fmt::format("the reference model has embeddings for only {} tokens, the "
                                  "model for {}",
                                  *of_reference.num_embeddings, used),
                      "train.reference",
                      "give a model with as many, or enlarge it with resize_token_embeddings of "
                      "transformers");
  const auto& other = of_reference.tokenizer;
  for (int64_t id = 0; id < own.vocab_size(); ++id) {
    const auto token = static_cast<tokenizer::TokenId>(id);
    const std::string expected = own.id_to_token(token),
                      found = id < other->vocab_size() ? other->id_to_token(token) : "";
    if (expected == found) continue;
    throw ConfigError(fmt::format("the reference model has other tokens than the model: number {} "
                                  "is `{}`, in model.name `{}`",
                                  id, found, expected),
                      "train.reference", "give a model with the same tokenizer");
  }
}

OtherModelAsked asked_reference(const PreparedRun& run) {
  const std::string& path = run.config.train.reference;
  const bool is_adapter = leads_to_file(std::filesystem::path(path) / "adapter_config.json");
  return {.name = path,
          .word = "the reference model",
          .setting = "train.reference",
          .model = is_adapter ? run.model_path.string() : path,
          .adapter = is_adapter ? std::optional(path) : std::nullopt};
}

}  // namespace

int add_logps_of_other_model(PreparedRun& run, const std::string& device, Rank& rank) {
  const OtherModel other(run, asked_reference(run), device);
  std::string own;
  const auto identify = [&] {
    if (!rank.is_main()) return;
    const auto checkpoint = other.open();
    if (!other.asked().adapter) require_same_tokens(*checkpoint, run);
    own = other.identity(*checkpoint).dump();
  };
  if (const int code = rank.before_training(identify)) return code;
  const Json identity = Json::parse(rank.comm().broadcast("reference", own));
  train::add_reference(run.identity, Fingerprint().add(identity.dump()).hex());
  return add_logps(run, rank, identity, other.asked().name, [&](const auto& use) {
    LoadedModel loaded;
    if (const int code = other.load(rank, loaded)) return code;
    const model::Stage stage(*loaded.decoder, loaded.strategy.get(), loaded.strategy->links());
    return use({.stage = stage, .mesh = loaded.division->mesh()});
  });
}

int add_logps_of_own_model(PreparedRun& run, Rank& rank) {
  const bool is_start = run.config.train.reference_model() == config::ReferenceModel::kStart;
  const bool is_fused = run.config.tuning.backend == config::TuningBackend::kFused;
  Json identity = {{"weights", run.base_fingerprint},
                   {"configuration", run.checkpoint->configuration()},
                   {"tuning", tuning_of(run)},
                   {"backend", is_fused ? "fused" : "bnb"}};
  if (const std::string& adapter = run.config.tuning.lora.init_from; is_start && !adapter.empty())
    identity["adapter"] = weights::adapter_hash(adapter);
  if (run.has_images) identity["images"] = image_files_of(run.model_path);
  const model::Stage stage(*run.decoder, run.strategy.get(), run.strategy->links());
  return add_logps(
      run, rank, identity, is_start ? "the model as it starts" : "the base model",
      [&](const auto& use) {
        return use({.stage = stage,
                    .mesh = run.strategy->mesh(),
                    .values = is_start ? model::PassValues::kTrained : model::PassValues::kBase});
      });
}

}  // namespace sftrun::engine
