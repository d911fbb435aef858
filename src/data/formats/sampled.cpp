#include "nulls.h"
#include "readers.h"
#include "record_values.h"
#include "sampled_answer.h"

/// Token ids of a prompt and of its answer. Texts beside them are what they were made from, and are
/// not read.
namespace sftrun::data {
namespace {

std::vector<NamedShape> sampled_shapes(const Json& record, const TemplateTraits& /*chat_template*/,
                                       const std::string& /*where*/) {
  const auto text_of = [&](const char* key) {
    const Json* value = value_of(record, key);
    return value != nullptr && value->is_string() ? value->get<std::string>() : std::string();
  };
  return one_shape(PlainText{text_of("prompt"), text_of("completion")});
}

bool sampled_is_rendered(const Json& /*record*/, bool /*has_chat_template*/) {
  return false;
}

std::string sampled_recognise(const Json& record) {
  return has_sampled_ids(record) ? "it has \"prompt_ids\" and \"completion_ids\"" : "";
}

}  // namespace

const FormatReader kSampledReader = {
    .shapes = sampled_shapes, .is_rendered = sampled_is_rendered, .recognise = sampled_recognise};

}  // namespace sftrun::data
