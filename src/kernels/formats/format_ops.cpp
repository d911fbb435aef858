#include "format_ops.h"

namespace sftrun::kernels {

constinit const std::array<const FormatOps*, kQuantFormats.size()> kFormatOps = {
    &kNf4Ops, &kFp4Ops, &kFp8Ops, &kInt8Ops, &kGgmlOps};

}  // namespace sftrun::kernels
