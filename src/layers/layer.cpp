#include "sftrun/layers/layer.h"

namespace sftrun::layers {

BlockMembers FeedForward::mlp_members() {
  return {.norms = {{"in", &in}, {"out", &out}},
          .linears = {{"gate", &gate}, {"up", &up}, {"gate_up", &gate_up}, {"down", &down}}};
}

BlockMembers FeedForward::experts_members() {
  SharedExpert& shared = mixture.shared;
  return {.norms = {{"in", &in},
                    {"out", &out},
                    {"dense_out", &dense_out},
                    {"experts_in", &experts_in},
                    {"experts_out", &experts_out}},
          .weights = {{"router_scale", place_of(mixture.router_norm)},
                      {"expert_scale", place_of(mixture.expert_scale)}},
          .linears = {{"router", &mixture.router},
                      {"shared_gate", &shared.gate},
                      {"shared_up", &shared.up},
                      {"shared_down", &shared.down},
                      {"shared_router", &shared.router}},
          .experts = {{"gate_up", &mixture.gate_up}, {"down", &mixture.down}}};
}

BlockMembers Layer::members(std::string_view block) {
  if (block == "mlp") return feed_forward.mlp_members();
  if (block == "experts") return feed_forward.experts_members();
  if (block == "per_layer") {
    return {.norms = {{"out", &per_layer.out}},
            .weights = {{"scalar", place_of(scalar)}},
            .linears = {{"gate", &per_layer.gate}, {"projection", &per_layer.projection}}};
  }
  BlockMembers members = mixer->members();
  members.norms.emplace_back("in", &mixer_in);
  members.norms.emplace_back("out", &mixer_out);
  return members;
}

std::vector<Linear*> Layer::linears() {
  std::vector<Linear*> present;
  for (const BlockMembers& block : {mixer->members(), feed_forward.mlp_members(),
                                    feed_forward.experts_members(), members("per_layer")})
    for (const auto& [role, linear] : block.linears)
      if (!linear->name.empty()) present.push_back(linear);
  return present;
}

std::vector<ExpertMatrix*> Layer::experts() {
  if (!feed_forward.mixture.defined()) return {};
  return {&feed_forward.mixture.gate_up, &feed_forward.mixture.down};
}

std::vector<Joinable> Layer::joints() {
  FeedForward& f = feed_forward;
  const bool is_dense = !f.mixture.defined();
  std::vector<Joinable> all = mixer->joints();
  all.push_back({&mixer->joint_output, {&mixer->output}});
  all.push_back(
      {&f.joint_gate_up, is_dense ? std::vector<Linear*>{&f.gate, &f.up} : std::vector<Linear*>{}});
  all.push_back({&f.joint_down, is_dense ? std::vector<Linear*>{&f.down} : std::vector<Linear*>{}});
  return all;
}

}  // namespace sftrun::layers
