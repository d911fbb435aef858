#include "other_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "sftrun/config/teacher.h"
#include "sftrun/core/error.h"
#include "sftrun/core/feature_projector.h"
#include "sftrun/core/file.h"
#include "sftrun/core/hash.h"
#include "sftrun/core/presence.h"
#include "sftrun/weights/adapter_file.h"
#include "sftrun/weights/embedding_files.h"
#include "sftrun/weights/fingerprint.h"

namespace sftrun::engine {

nlohmann::ordered_json image_files_of(const std::filesystem::path& model) {
  nlohmann::ordered_json prints = nlohmann::ordered_json::object();
  for (const char* name : {"preprocessor_config.json", "processor_config.json",
                           "video_preprocessor_config.json", "sftrun_images.json"})
    if (const std::filesystem::path file = model / name; leads_to_file(file))
      prints[name] = Fingerprint().add(read_text_file(file)).hex();
  return prints;
}

OtherModel::OtherModel(const PreparedRun& run, OtherModelAsked asked, std::string device)
    : run_(run),
      asked_(std::move(asked)),
      request_{.model = asked_.model, .adapter = asked_.adapter, .takes_images = run.has_images},
      device_(std::move(device)) {
  if (asked_.reads_as_run) request_.read_as = std::make_shared<const config::RunConfig>(run.config);
}

std::shared_ptr<const weights::Checkpoint> OtherModel::open() const {
  weights::refuse_embedding_model(
      request_.adapter.value_or(request_.model),
      {.model = asked_.word, .where = asked_.setting, .fix = "name a language model"});
  const bool is_of_run = request_.adapter && request_.model == run_.model_path.string();
  return is_of_run ? run_.checkpoint : weights::Checkpoint::open(request_.model);
}

nlohmann::ordered_json OtherModel::identity(const weights::Checkpoint& checkpoint) const {
  const auto files = weights::hash_weights(checkpoint, weights::remembered_hashes());
  nlohmann::ordered_json identity = {{"weights", weights::fingerprint(checkpoint, files)},
                                     {"configuration", checkpoint.configuration()}};
  if (run_.has_images) identity["images"] = image_files_of(request_.model);
  if (request_.adapter) {
    if (run_.has_images) identity["adapter_images"] = image_files_of(*request_.adapter);
    identity["adapter"] = weights::adapter_hash(*request_.adapter);
    identity["adapter_config"] =
        weights::load_adapter_config(*request_.adapter, checkpoint.arch()).to_json();
  }
  return identity;
}

/// A model that does not read what the answers are about says other things.
void OtherModel::require_same_inputs(const spec::ArchSpec& other) const {
  const auto refuse = [&](const std::string& what, const std::string& fix) {
    throw ConfigError(what, asked_.setting, fix);
  };
  if (run_.has_images && !other.vision)
    refuse(fmt::format("the records have images, and {} reads none", asked_.word),
           "give a model with a vision tower");
  const auto has_features_in = [](const auto& data) {
    return data && data->examples().media_kinds().features;
  };
  if (!has_features_in(run_.data.train) && !has_features_in(run_.data.val)) return;
  for (const FeatureProjector& projector : run_.checkpoint->arch().projectors) {
    const auto& known = other.projectors;
    const bool has_it = std::any_of(known.begin(), known.end(), [&](const FeatureProjector& one) {
      return one.name == projector.name && one.input_width == projector.input_width &&
             one.tokens == projector.tokens;
    });
    if (!has_it)
      refuse(fmt::format("the records have features for the projector {}, which {} does not have, "
                         "or with other sizes",
                         projector.name, asked_.word),
             "give a model or an adapter that was trained with it");
  }
}

int OtherModel::load(Rank& rank, LoadedModel& loaded) const {
  const config::ParallelConfig parallel = config::parallel_of_frozen(run_.config.parallel);
  const app::ComputeRequest compute{.device = device_, .dtype = dtype_name(run_.compute.dtype)};
  if (const int code = load_part(request_, compute, parallel, rank, loaded, nullptr,
                                 /*is_first=*/false, asked_.form ? &*asked_.form : nullptr))
    return rank.told_before_training(code);
  return rank.before_training([&] { require_same_inputs(loaded.decoder->arch()); });
}

}  // namespace sftrun::engine
