#pragma once

#include <string_view>

/// Files that the build embeds (cmake/SftrunEmbed.cmake).
namespace sftrun::observe {

extern const std::string_view kPageStyle, kPageScript;  ///< page.css, page.js
/// dygraphs and its licence; empty: the build did not find it.
extern const std::string_view kChartStyle, kChartScript, kChartLicense;

}  // namespace sftrun::observe
