#pragma once

#include <arrow/io/interfaces.h>
#include <arrow/result.h>

#include <memory>

namespace sftrun::arrow_readers {

/// The same bytes of CSV, and an error at their end where a quote was opened and never closed:
/// Arrow would take all that follows it for one field. A NUL byte is an error, too.
std::shared_ptr<arrow::io::InputStream> with_quotes_checked(
    std::shared_ptr<arrow::io::InputStream> stream, char delimiter);

}  // namespace sftrun::arrow_readers
