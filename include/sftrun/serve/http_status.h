#pragma once

namespace sftrun::serve {

/// Status codes of HTTP (RFC 9110 and RFC 6585), and nginx's 499.
inline constexpr int kBadRequest = 400, kUnauthorized = 401, kForbidden = 403, kNotFound = 404,
                     kWrongMethod = 405, kTooLarge = 413, kTargetTooLong = 414, kWrongType = 415,
                     kTooMany = 429, kHeadersTooLarge = 431, kClientGone = 499, kFailed = 500,
                     kNotImplemented = 501, kUnavailable = 503;

}  // namespace sftrun::serve
