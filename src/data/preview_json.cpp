#include "preview_runs.h"
#include "sftrun/config/trained_rows.h"
#include "sftrun/data/example.h"
#include "sftrun/data/preview.h"

namespace sftrun::data {
namespace {

Json images_json(const Sequence& sequence) {
  Json images = Json::array();
  for (const SequenceMedia& image : sequence.media) {
    if (!image.is_image() || image.is_of_video()) continue;
    images.push_back({{"file", image.media.path.empty() ? Json() : Json(image.media.path)},
                      {"width", image.width},
                      {"height", image.height},
                      {"num_tokens", image.num_tokens},
                      {"begin", image.begin},
                      {"end", image.end}});
  }
  return images;
}

Json videos_json(const Sequence& sequence) {
  Json videos = Json::array();
  for (const size_t index : shown_media(sequence)) {
    const SequenceMedia& first = sequence.media[index];
    if (!first.is_of_video()) continue;
    const ShownVideo video = shown_video(sequence, index);
    Json files = Json::array();
    for (const Media& file : video.files)
      files.push_back(file.path.empty() ? Json() : Json(file.path));
    videos.push_back({{"frames", std::move(files)},
                      {"width", first.width},
                      {"height", first.height},
                      {"num_tokens", video.num_tokens},
                      {"begin", video.begin},
                      {"end", video.end}});
  }
  return videos;
}

Json features_json(const Sequence& sequence) {
  Json features = Json::array();
  for (const SequenceMedia& media : sequence.media) {
    if (media.is_image()) continue;
    features.push_back({{"file", media.media.path},
                        {"rows", media.rows},
                        {"num_tokens", media.num_tokens},
                        {"begin", media.begin},
                        {"end", media.end}});
  }
  return features;
}

/// null: it is not judged.
Json judgement_json(Judgement judgement) {
  return judgement == Judgement::kNone ? Json() : Json(judgement == Judgement::kDesirable);
}

Json or_null(const std::optional<float>& number) {
  return number ? Json(*number) : Json();
}

/// null: the answer has none of this kind.
Json score_json(const Sequence& sequence, ScoreKind kind) {
  return sequence.score_kind == kind ? Json(sequence.score) : Json();
}

/// One for each token, 0 without a label; null: all labels have weight 1.
Json weights_json(const Sequence& sequence) {
  if (sequence.weights.empty()) return nullptr;
  Json weights = Json::array();
  for (size_t i = 0; i < sequence.weights.size(); ++i)
    weights.push_back(sequence.mask[i] != 0 ? sequence.weights[i] : 0.0F);
  return weights;
}

Json sequence_json(const PreviewedSequence& previewed, const tokenizer::Tokenizer& tokenizer) {
  Json ids = Json::array(), tokens = Json::array(), labels = Json::array(), origins = Json::array();
  int64_t num_labels = 0;
  const std::string_view of_texts = config::trained_of_texts(previewed.head);
  for (const ShownRun& run : shown_runs(previewed, tokenizer)) {
    for (const ShownToken& token : run.tokens) {
      ids.push_back(token.id);
      tokens.push_back(token.text);
      labels.push_back(token.trained ? token.id : kIgnoreIndex);
      origins.push_back(run.origin);
      num_labels += token.trained ? 1 : 0;
    }
  }
  return {{"place", previewed.place},
          {"left_out", previewed.left_out.empty() ? Json() : Json(previewed.left_out)},
          {"num_kept", previewed.num_kept},
          {"num_labels", num_labels},
          {"trained_of_text", of_texts.empty() ? Json() : Json(of_texts)},
          {"label_weights", weights_json(previewed.sequence)},
          {"is_desirable", judgement_json(previewed.sequence.judgement)},
          {"classes", previewed.classes.empty() ? Json() : Json(previewed.classes)},
          {"margin", or_null(shown_margin(previewed))},
          {"reward", score_json(previewed.sequence, ScoreKind::kReward)},
          {"advantage", score_json(previewed.sequence, ScoreKind::kAdvantage)},
          {"group", previewed.group == 0 ? Json() : Json(previewed.group)},
          {"images", images_json(previewed.sequence)},
          {"videos", videos_json(previewed.sequence)},
          {"features", features_json(previewed.sequence)},
          {"input_ids", std::move(ids)},
          {"tokens", std::move(tokens)},
          {"labels", std::move(labels)},
          {"origins", std::move(origins)}};
}

}  // namespace

Json preview_json(const std::vector<Preview>& previews, const TextModel& model) {
  Json data_sets = Json::array();
  for (const Preview& preview : previews) {
    Json sequences = Json::array();
    for (const PreviewedSequence& previewed : preview.sequences)
      sequences.push_back(sequence_json(previewed, *model.tokenizer));
    data_sets.push_back({{"path", preview.name},
                         {"format", name_of(preview.format)},
                         {"format_reason", preview.format_reason},
                         {"sequences", std::move(sequences)}});
  }
  return {{"data_sets", std::move(data_sets)}};
}

}  // namespace sftrun::data
