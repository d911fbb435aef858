#include "readers.h"
#include "record_values.h"

namespace sftrun::data {
namespace {

std::vector<NamedShape> text_shapes(const Json& record, const TemplateTraits& /*chat_template*/,
                                    const std::string& where) {
  return one_shape(PlainText{"", require_string(record, "text", RecordFormat::kText, where)});
}

bool text_is_rendered(const Json& /*record*/, bool /*has_chat_template*/) {
  return false;
}

}  // namespace

const FormatReader kTextReader = {.shapes = text_shapes, .is_rendered = text_is_rendered};

}  // namespace sftrun::data
