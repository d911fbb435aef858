#include "readers.h"
#include "record_values.h"
#include "retrieval_record.h"

/// A query, and texts that fit it and that do not, in the layouts of sentence-transformers and
/// FlagEmbedding.
namespace sftrun::data {
namespace {

std::vector<NamedShape> retrieval_shapes(const Json& record,
                                         const TemplateTraits& /*chat_template*/,
                                         const std::string& where) {
  return one_shape(PlainText{"", retrieval_record(record, where).anchor});
}

bool retrieval_is_rendered(const Json& /*record*/, bool /*has_chat_template*/) {
  return false;
}

std::string retrieval_recognise(const Json& record) {
  return has_retrieval(record) ? "it has a query and a text that fits it" : "";
}

}  // namespace

const FormatReader kRetrievalReader = {.shapes = retrieval_shapes,
                                       .is_rendered = retrieval_is_rendered,
                                       .recognise = retrieval_recognise};

}  // namespace sftrun::data
