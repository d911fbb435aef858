#include "sftrun/data/scored_text.h"

namespace sftrun::data {

SequenceBuilder scored_text_builder(const Json& record, const std::string& where,
                                    const TextModel& text, const spec::ScoreSpec& head) {
  SequenceOptions options;
  options.append_eos = false;
  options.form = config::ExampleForm::kClassed;
  options.loss_on = config::LossOnChoice::kAll;
  options.ends_texts = head.num_labels == 1;
  return SequenceBuilder(detect_scored_format(record, where).format, text, options);
}

}  // namespace sftrun::data
