#include "gpu_view.h"

#include <fmt/format.h>

#include "sftrun/core/strings.h"

namespace sftrun::app {

using launch::GpuInfo;

GpuView view_of(launch::GpuReport all) {
  GpuView view;
  view.visibility = launch::gpu_visibility(all);
  view.shown = all;
  if (!view.visibility || (view.has_slice() && view.visibility->visible.empty())) return view;
  view.shown.gpus.clear();
  view.shown.links.clear();
  for (const size_t i : view.visibility->visible) {
    view.shown.gpus.push_back(all.gpus[i]);
    std::vector<std::string>& row = view.shown.links.emplace_back();
    for (const size_t j : view.visibility->visible) row.push_back(all.links[i][j]);
  }
  for (const size_t i : view.visibility->hidden) view.hidden.push_back(all.gpus[i]);
  return view;
}

std::string GpuView::visibility_text() const {
  if (!visibility) return {};
  const std::string variable = fmt::format("CUDA_VISIBLE_DEVICES={}", excerpt(visibility->setting));
  std::string text;
  if (!visibility->problem.empty()) text += fmt::format("warning: {}\n", visibility->problem);
  if (has_slice()) text += fmt::format("{}: a MIG slice; below are whole GPUs\n", variable);
  if (hidden.empty()) return text;
  std::vector<std::string> names;
  for (const GpuInfo& gpu : hidden) names.push_back(fmt::format("{} ({})", gpu.index, gpu.name));
  return text + fmt::format("Hidden by {}: GPU {}\n", variable, join(names, ", "));
}

nlohmann::ordered_json GpuView::hidden_json() const {
  nlohmann::ordered_json gpus = nlohmann::ordered_json::array();
  for (const GpuInfo& gpu : hidden)
    gpus.push_back({{"index", gpu.index}, {"name", gpu.name}, {"uuid", gpu.uuid}});
  return gpus;
}

}  // namespace sftrun::app
