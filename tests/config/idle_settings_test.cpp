#include "sftrun/config/idle_settings.h"

#include <algorithm>
#include <map>
#include <set>

#include "config_test_base.h"
#include "sftrun/core/error.h"
#include "support/expect_error.h"

namespace sftrun::config {
namespace {

/// "tuning.lora.r" and all others.
std::vector<std::string> all_keys() {
  std::vector<std::string> keys;
  const std::set<std::string> fields_with_maps = {"data.fields", "data.chat_template_kwargs",
                                                  "tuning.lora.rank_pattern",
                                                  "tuning.lora.alpha_pattern"};
  const std::function<void(const nlohmann::ordered_json&, const std::string&)> add =
      [&](const nlohmann::ordered_json& json, const std::string& prefix) {
        for (const auto& [name, value] : json.items()) {
          const std::string key = prefix.empty() ? name : prefix + "." + name;
          if (value.is_object() && !fields_with_maps.contains(key)) {
            add(value, key);
          } else {
            keys.push_back(key);
          }
        }
      };
  add(to_json(RunConfig{}), "");
  return keys;
}

using IdleSettings = ConfigTest;

TEST_F(IdleSettings, EveryKeyIsAlwaysEffectiveOrHasARule) {
  const std::vector<std::string> keys = all_keys();
  EXPECT_GT(keys.size(), 110U);
  for (const std::string& key : keys)
    EXPECT_TRUE(effect_of(key))
        << key << ": add a rule (src/config/idle_rules), or add it to idle_settings.cpp";
}

/// A run in which the setting changes nothing, and one in which it does.
struct Case {
  std::vector<std::string> set;  ///< the first is the setting
  std::vector<std::string> idle_with, effective_with;
  RunFacts idle_facts = {}, facts = {};
};

const std::vector<Case>& cases() {
  const std::vector<std::string> with_val = {"data.val=v.jsonl"};
  const RunFacts one{.world_size = 1, .on_gpu = true}, two{.world_size = 2, .on_gpu = true},
      four{.world_size = 4, .on_gpu = true}, cpu{.world_size = 1, .on_gpu = false},
      gpu{.world_size = 1, .on_gpu = true}, two_cpus{.world_size = 2, .on_gpu = false};
  static const std::vector<Case> all = {
      {{"model.attention=flash"}, {}, {}, cpu, gpu},
      {{"model.attention=flash"}, {"tuning.backend=bnb"}, {}, gpu, gpu},
      {{"tuning.lora.r=8"}, {"tuning.mode=full"}, {}},
      {{"tuning.lora.alpha=8"}, {"tuning.mode=full"}, {}},
      {{"tuning.lora.dropout=0.1"}, {"train.objective=dpo"}, {}},
      {{"tuning.lora.rank_pattern.o_proj=3"}, {"tuning.mode=full"}, {}},
      {{"data.shuffle_buffer=9"}, {}, {"data.streaming=true", "train.max_steps=3"}},
      {{"data.shuffle_buffer=9"},
       {"data.streaming=true", "train.max_steps=3", "data.shuffle=false", "data.packing=false"},
       {"data.streaming=true", "train.max_steps=3", "data.shuffle=false"}},
      {{"data.shuffle_buffer=9"},
       {"data.streaming=true", "train.max_steps=3", "data.shuffle=false", "data.packing=false"},
       {"data.streaming=true", "train.max_steps=3", "data.shuffle=false", "data.packing=false",
        "data.train=[a.jsonl, b.jsonl]"}},
      {{"data.cache_dir=c"}, {"data.streaming=true", "train.max_steps=3"}, {}},
      {{"data.bin_tokens=64"}, {"data.packing=false"}, {}},
      {{"data.packing=true"},
       {"train.objective=grpo", "train.rollouts.reward=number"},
       {"train.objective=grpo"}},
      {{"data.packing=true"},
       {"train.objective=distill", "train.teacher=t", "train.rollouts.share=0.5"},
       {"train.objective=distill", "train.teacher=t"}},
      {{"data.seed=1"}, {"data.shuffle=false"}, {}},
      {{"data.seed=1"}, {"data.shuffle=false"}, {"data.shuffle=false", "data.val_split=0.5"}},
      {{"data.seed=1"},
       {"data.shuffle=false", "data.train=[{path: t.jsonl, weight: 0.5}]", "data.streaming=true",
        "train.max_steps=3"},
       {"data.shuffle=false", "data.train=[{path: t.jsonl, weight: 0.5}]"}},
      {{"data.format=text"}, {"data.train=[{path: t.jsonl, format: messages}]"}, {}},
      {{"data.val=v.jsonl"},
       {"train.eval_strategy=no"},
       {"train.eval_strategy=no", "train.eval_on_start=true"}},
      {{"data.val=[{path: v.jsonl, weight: 2}]"}, {}, {"data.val=v.jsonl"}},
      {{"data.thinking=keep"}, {"data.format=text"}, {}},
      {{"data.thinking=split"}, {"data.loss_on=all"}, {}},
      {{"data.loss_on=last_assistant"}, {"train.objective=dpo"}, {}},
      {{"data.loss_on=all"}, {"data.format=text"}, {}},
      {{"data.label_weights={a: 2}"}, {"train.objective=dpo"}, {}},
      {{"data.empty_thinking=drop"}, {"data.format=text"}, {"train.objective=dpo"}},
      {{"train.beta=0.2"}, {}, {"train.objective=dpo"}},
      {{"train.loss_type=hinge"}, {"train.objective=simpo"}, {"train.objective=dpo"}},
      {{"train.label_smoothing=0.1"}, {}, {"train.objective=simpo"}},
      {{"train.label_smoothing=0.1"},
       {"train.objective=dpo", "train.loss_type=hinge"},
       {"train.objective=dpo", "train.loss_type=robust"}},
      {{"train.ld_alpha=0.5"}, {"train.objective=cpo"}, {"train.objective=dpo"}},
      {{"train.f_divergence=js_divergence"}, {"train.objective=cpo"}, {"train.objective=ipo"}},
      {{"train.f_alpha_divergence_coef=0.2"},
       {"train.objective=dpo"},
       {"train.objective=dpo", "train.f_divergence=alpha_divergence"}},
      {{"train.discopop_tau=0.2"},
       {"train.objective=dpo"},
       {"train.objective=dpo", "train.loss_type=discopop"}},
      {{"train.beta=0.2"},
       {"train.objective=dpo", "train.loss_type=sft"},
       {"train.objective=dpo", "train.loss_type=[sft, hinge]"}},
      {{"train.reference_logps=precomputed"},
       {"train.objective=dpo", "train.reference=some/model"},
       {"train.objective=dpo"}},
      {{"train.simpo_gamma=1"}, {"train.objective=cpo"}, {"train.objective=simpo"}},
      {{"train.cpo_alpha=0.5"}, {"train.objective=orpo"}, {"train.objective=cpo"}},
      {{"train.desirable_weight=2"}, {"train.objective=dpo"}, {"train.objective=kto"}},
      {{"train.undesirable_weight=2"}, {}, {"train.objective=kto"}},
      {{"train.center_rewards_coefficient=0.1"}, {}, {"train.objective=reward"}},
      {{"train.pooling=mean"}, {"train.objective=classify"}, {"train.objective=embed"}},
      {{"train.embed_temperature=0.1"}, {}, {"train.objective=embed"}},
      {{"train.embed_normalize=false"}, {}, {"train.objective=embed"}},
      {{"train.embed_symmetric=true"}, {}, {"train.objective=embed"}},
      {{"train.negatives=2"}, {"train.objective=dpo"}, {"train.objective=embed"}},
      {{"data.query_prompt=q"}, {}, {"train.objective=embed"}},
      {{"data.document_prompt=d"}, {"train.objective=reward"}, {"train.objective=embed"}},
      {{"train.problem_type=multi_label_classification"}, {}, {"train.objective=classify"}},
      {{"data.classes=[a, b]"}, {"train.objective=reward"}, {"train.objective=classify"}},
      {{"train.seed=1"}, {"tuning.mode=full"}, {"tuning.mode=full", "train.objective=reward"}},
      {{"train.reference=base"}, {}, {"train.objective=dpo"}},
      {{"train.teacher=t"}, {}, {"train.objective=distill"}},
      {{"train.kd_alpha=0.7"}, {}, {"train.objective=distill", "train.teacher=t"}},
      {{"train.teacher_topk=7"}, {}, {"train.objective=distill", "train.teacher=t"}},
      {{"train.teacher_topk=7"},
       {"train.objective=distill", "train.teacher=t", "train.kd_alpha=0"},
       {"train.objective=distill", "train.teacher=t"}},
      {{"train.teacher_quant=nf4"}, {}, {"train.objective=distill", "train.teacher=t"}},
      {{"train.kd_beta=0.5"}, {}, {"train.objective=distill", "train.teacher=t"}},
      {{"train.kd_temperature=2"}, {}, {"train.objective=distill", "train.teacher=t"}},
      {{"train.kd_beta=0.5"},
       {"train.objective=distill", "train.teacher=t", "train.kd_alpha=0"},
       {"train.objective=distill", "train.teacher=t"}},
      {{"train.kd_temperature=2"},
       {"train.objective=distill", "train.teacher=t", "train.kd_alpha=0"},
       {"train.objective=distill", "train.teacher=t"}},
      {{"train.reference_logps=precomputed"}, {}, {"train.objective=dpo"}},
      {{"train.reference=base"},
       {"train.objective=grpo"},
       {"train.objective=grpo", "train.beta=0.1"}},
      {{"train.epsilon=0.1"}, {"train.objective=kto"}, {"train.objective=grpo"}},
      {{"train.epsilon=0.1"},
       {"train.objective=grpo", "train.loss_type=cispo"},
       {"train.objective=grpo", "train.loss_type=grpo"}},
      {{"train.epsilon_high=0.3"}, {}, {"train.objective=grpo"}},
      {{"train.delta=2"}, {}, {"train.objective=grpo"}},
      {{"train.delta=2"},
       {"train.objective=grpo", "train.loss_type=cispo"},
       {"train.objective=grpo", "train.loss_type=dr_grpo"}},
      {{"train.importance_sampling_level=sequence"}, {}, {"train.objective=grpo"}},
      {{"train.scale_rewards=none"}, {}, {"train.objective=grpo"}},
      {{"train.mask_truncated_completions=true"}, {}, {"train.objective=grpo"}},
      {{"train.max_completion_length=64"},
       {"train.objective=grpo"},
       {"train.objective=grpo", "train.loss_type=dr_grpo"}},
      {{"train.sampling_correction=off"}, {}, {"train.objective=grpo"}},
      {{"train.sampling_correction_max=2"}, {}, {"train.objective=grpo"}},
      {{"train.rollouts.n=4"},
       {"train.objective=grpo"},
       {"train.objective=grpo", "train.rollouts.reward=[number]"}},
      {{"train.rollouts.max_new_tokens=64"},
       {"train.objective=grpo"},
       {"train.objective=grpo", "train.rollouts.reward=[number]"}},
      {{"train.rollouts.temperature=0.9"},
       {"train.objective=grpo"},
       {"train.objective=grpo", "train.rollouts.reward=[number]"}},
      {{"train.rollouts.top_p=0.9"},
       {"train.objective=grpo"},
       {"train.objective=grpo", "train.rollouts.reward=[number]"}},
      {{"train.rollouts.top_k=50"},
       {"train.objective=grpo"},
       {"train.objective=grpo", "train.rollouts.reward=[number]"}},
      {{"train.rollouts.min_p=0.1"},
       {"train.objective=grpo"},
       {"train.objective=grpo", "train.rollouts.reward=[number]"}},
      {{"train.rollouts.batch_size=4"},
       {"train.objective=grpo"},
       {"train.objective=grpo", "train.rollouts.reward=[number]"}},
      {{"train.rollouts.chat=false"},
       {"train.objective=grpo"},
       {"train.objective=grpo", "train.rollouts.reward=[number]"}},
      {{"train.rollouts.num_samples=1"},
       {"train.objective=grpo"},
       {"train.objective=grpo", "train.rollouts.reward=[number]"}},
      {{"train.rollouts.reward=[number]"}, {}, {"train.objective=grpo"}},
      {{"train.rollouts.reward=[number]"},
       {"train.objective=distill", "train.teacher=t"},
       {"train.objective=grpo"}},
      {{"train.rollouts.share=0.5"},
       {"train.objective=grpo", "train.rollouts.reward=[number]"},
       {"train.objective=distill", "train.teacher=t"}},
      {{"train.rollouts.max_new_tokens=64"},
       {"train.objective=distill", "train.teacher=t"},
       {"train.objective=distill", "train.teacher=t", "train.rollouts.share=0.5"}},
      {{"train.rollouts.n=4"},
       {"train.objective=distill", "train.teacher=t", "train.rollouts.share=0.5"},
       {"train.objective=grpo", "train.rollouts.reward=[number]"}},
      {{"train.seed=1"},
       {"tuning.mode=full", "train.objective=distill", "train.teacher=t"},
       {"tuning.mode=full", "train.objective=distill", "train.teacher=t",
        "train.rollouts.share=0.5"}},
      {{"data.bin_tokens=64"},
       {"train.objective=distill", "train.teacher=t", "train.rollouts.share=0.5"},
       {"train.objective=distill", "train.teacher=t"}},
      {{"train.epsilon=0.1"},
       {"train.objective=grpo", "train.rollouts.reward=[number]"},
       {"train.objective=grpo", "train.rollouts.reward=[number]",
        "train.rollouts.num_iterations=2"}},
      {{"train.sampling_correction_max=2"},
       {"train.objective=grpo", "train.rollouts.reward=[number]"},
       {"train.objective=grpo", "train.rollouts.reward=[number]", "train.rollouts.top_p=0.9"}},
      {{"train.rollouts.num_iterations=2"},
       {"train.objective=grpo"},
       {"train.objective=grpo", "train.rollouts.reward=[number]"}},
      {{"train.rollouts.environment=./tools"},
       {"train.objective=grpo"},
       {"train.objective=grpo", "train.rollouts.reward=[number]"}},
      {{"train.rollouts.max_turns=3"},
       {"train.objective=grpo", "train.rollouts.reward=[number]"},
       {"train.objective=grpo", "train.rollouts.reward=[number]",
        "train.rollouts.environment=./tools"}},
      {{"train.rollouts.environment_timeout=3"},
       {"train.objective=grpo", "train.rollouts.reward=[number]"},
       {"train.objective=grpo", "train.rollouts.reward=[number]",
        "train.rollouts.environment=./tools"}},
      {{"train.rollouts.engine=http://localhost:8000/v1"},
       {"train.objective=grpo"},
       {"train.objective=grpo", "train.rollouts.reward=[number]"}},
      {{"train.rollouts.engine_model=base"},
       {"train.objective=grpo", "train.rollouts.reward=[number]"},
       {"train.objective=grpo", "train.rollouts.reward=[number]",
        "train.rollouts.engine=http://localhost:8000/v1"}},
      {{"train.rollouts.engine_token_variable=KEY"},
       {"train.objective=grpo", "train.rollouts.reward=[number]"},
       {"train.objective=grpo", "train.rollouts.reward=[number]",
        "train.rollouts.engine=http://localhost:8000/v1"}},
      {{"train.rollouts.engine_timeout=9"},
       {"train.objective=grpo", "train.rollouts.reward=[number]"},
       {"train.objective=grpo", "train.rollouts.reward=[number]",
        "train.rollouts.engine=http://localhost:8000/v1"}},
      {{"train.max_completion_length=64"},
       {"train.objective=grpo", "train.loss_type=dr_grpo", "train.rollouts.reward=[number]"},
       {"train.objective=grpo", "train.loss_type=dr_grpo"}},
      {{"data.group_by_length=true"},
       {"train.objective=grpo", "data.packing=false", "train.rollouts.reward=[number]"},
       {"train.objective=grpo", "data.packing=false"}},
      {{"train.sampling_correction_max=2"},
       {"train.objective=grpo", "train.sampling_correction=off"},
       {"train.objective=grpo"}},
      {{"train.epochs=2"}, {"train.max_steps=3"}, {}},
      {{"train.warmup_ratio=0.1"}, {"train.scheduler=constant"}, {}},
      {{"train.warmup_steps=3"}, {"train.scheduler=constant"}, {}},
      {{"train.warmup_from=zero"}, {"train.scheduler=constant"}, {}},
      {{"train.warmup_from=zero"}, {"train.warmup_steps=0"}, {}},
      {{"train.seed=1"}, {"tuning.mode=full"}, {"tuning.mode=full", "train.neftune_noise_alpha=5"}},
      {{"train.seed=1"},
       {"tuning.lora.init_from=a"},
       {"tuning.lora.init_from=a", "tuning.lora.dropout=0.1"}},
      {{"train.seed=1"},
       {"tuning.lora.init=pissa"},
       {"tuning.lora.init=pissa", "tuning.lora.dropout=0.1"}},
      {{"train.save_in_background=on"},
       {"train.save_every=0"},
       {"train.save_every=0", "train.save_strategy=epoch"}},
      {{"train.save_steps=5"}, {"train.save_strategy=epoch"}, {}},
      {{"train.adam_beta1=0.8"}, {"train.optimizer=sgd"}, {}},
      {{"train.adam_beta2=0.8"}, {"train.optimizer=adafactor"}, {}},
      {{"train.adam_epsilon=1e-6"}, {"train.optimizer=lion"}, {}},
      {{"train.adam_epsilon=1e-6"},
       {"train.optimizer=muon"},
       {"train.optimizer=muon", "tuning.mode=full"}},
      {{"train.adam_beta1=0.8"},
       {"train.optimizer=muon"},
       {"train.optimizer=muon", "tuning.lora.dora=true"}},
      {{"train.adam_beta2=0.8"},
       {"train.optimizer=muon"},
       {"train.optimizer=muon", "tuning.lora.modules_to_save=[lm_head]"}},
      {{"train.momentum=0.5"}, {}, {"train.optimizer=sgd"}},
      {{"train.nesterov=true"}, {}, {"train.optimizer=muon"}},
      {{"train.nesterov=true"},
       {"train.optimizer=muon", "train.momentum=0"},
       {"train.optimizer=muon"}},
      {{"train.muon_lr=original"}, {"train.optimizer=sgd"}, {"train.optimizer=muon"}},
      {{"train.eval_batch_size=4"}, {}, with_val},
      {{"train.eval_token_accuracy=true"}, {}, with_val},
      {{"train.predict_with_generate=true"},
       {"data.val=v.jsonl", "train.eval_strategy=no"},
       with_val},
      {{"train.eval_steps=4"}, {"data.val=v.jsonl", "train.eval_strategy=epoch"}, with_val},
      {{"train.eval_on_start=true"}, {"train.eval_strategy=no"}, with_val},
      {{"train.generation_max_new_tokens=4"},
       with_val,
       {"data.val=v.jsonl", "train.predict_with_generate=true"}},
      {{"train.generation_num_beams=2"}, {}, {}},
      {{"train.generation_batch_size=4"},
       with_val,
       {"data.val=v.jsonl", "train.predict_with_generate=true"}},
      {{"train.generation_max_samples=4"},
       with_val,
       {"data.val=v.jsonl", "train.predict_with_generate=true"}},
      {{"train.generation_time_budget=0.5"},
       {"data.val=v.jsonl", "train.predict_with_generate=true",
        "train.metric_for_best_model=eval_rouge_l"},
       {"data.val=v.jsonl", "train.predict_with_generate=true"}},
      {{"train.early_stopping_threshold=0.5"},
       with_val,
       {"data.val=v.jsonl", "train.early_stopping_patience=2"}},
      {{"train.greater_is_better=false"},
       with_val,
       {"data.val=v.jsonl", "train.load_best_model_at_end=true"}},
      {{"train.ddp_find_unused_parameters=true"}, {}, {}},
      {{"train.ddp_broadcast_buffers=true"}, {}, {}},
      {{"train.ddp_comm_hook=bf16"}, {"parallel.strategy=fsdp"}, {}, two, two},
      {{"train.ddp_comm_hook=bf16"}, {}, {}, one, two},
      {{"train.ddp_comm_hook=bf16"},
       {"parallel.strategy=tensor", "parallel.tp=2"},
       {"parallel.strategy=tensor", "parallel.tp=2"},
       two,
       {.world_size = 4, .on_gpu = true}},
      {{"train.ddp_bucket_cap_mb=9"}, {"parallel.offload.base=cpu"}, {}, two, two},
      {{"train.ddp_bucket_cap_mb=9"}, {"parallel.device_map=auto"}, {}},
      {{"train.deterministic=true"}, {}, {}, cpu, gpu},
      {{"train.cuda_graphs=on"}, {}, {}, cpu, gpu},
      {{"train.cuda_graphs=on"}, {"parallel.cp=2"}, {}, two, two},
      {{"train.cuda_graphs=on"}, {"train.objective=dpo"}, {}, gpu, gpu},
      {{"train.cuda_graphs=on"}, {"tuning.backend=bnb"}, {}, gpu, gpu},
      {{"train.cuda_graphs=on"}, {"parallel.strategy=fsdp"}, {"parallel.strategy=ddp"}, two, two},
      {{"train.cuda_graphs=on"},
       {"parallel.strategy=ddp", "tuning.mode=full"},
       {"tuning.mode=full"},
       two,
       gpu},
      {{"parallel.strategy=fsdp"}, {}, {}, one, two},
      {{"parallel.strategy=pipeline"}, {}, {}, one, two},
      {{"parallel.pp=2"}, {}, {}, one, two},
      {{"parallel.tp=2"}, {}, {}, one, two},
      {{"parallel.cp=2"}, {}, {}, one, two},
      {{"parallel.dp_shard=2"}, {}, {}, one, two},
      {{"parallel.dp_replicate=2"}, {}, {}, one, two},
      {{"parallel.backend=gloo"}, {}, {}, one, two},
      {{"parallel.timeout=3m"}, {}, {}, one, two},
      {{"parallel.stall_after=3s"}, {}, {}, one, two},
      {{"parallel.stall_after=11m"}, {}, {"parallel.timeout=1h"}, two, two},
      {{"parallel.device_map=auto"}, {}, {}, cpu, gpu},
      {{"parallel.strategy=device_map"}, {}, {}, cpu, gpu},
      {{"parallel.strategy=device_map"}, {}, {"parallel.pp=2"}, cpu, cpu},
      {{"parallel.device_map=auto"}, {}, {"parallel.pp=2"}, cpu, cpu},
      {{"parallel.strategy=fsdp"}, {"parallel.dp_shard=1"}, {}, four, four},
      {{"parallel.strategy=zero1"},
       {"parallel.dp_replicate=4"},
       {"parallel.dp_replicate=2"},
       four,
       four},
      {{"parallel.strategy=hybrid"},
       {"parallel.dp_replicate=2", "parallel.tp=2"},
       {"parallel.dp_shard=2", "parallel.tp=2"},
       four,
       four},
      {{"parallel.strategy=fsdp"}, {"parallel.tp=2"}, {"parallel.tp=2"}, two, four},
      {{"parallel.fetch=per_step"},
       {"parallel.strategy=ddp"},
       {"parallel.strategy=fsdp"},
       two,
       two},
      {{"parallel.fetch=per_step"},
       {"parallel.strategy=zero2"},
       {"parallel.offload.base=cpu"},
       two,
       gpu},
      {{"parallel.offload.optimizer=cpu"}, {}, {}, cpu, gpu},
      {{"parallel.offload.activations=cpu", "train.gradient_checkpointing=true"}, {}, {}, cpu, gpu},
      {{"parallel.offload.base=cpu"}, {}, {}, two_cpus, gpu},
      {{"parallel.offload.base=cpu"}, {"tuning.mode=full"}, {}, gpu, gpu},
      {{"parallel.offload.params=cpu"}, {"tuning.mode=full"}, {"tuning.mode=full"}, cpu, gpu},
      {{"output.tracking.project=p"}, {}, {"output.report_to=[wandb]"}},
      {{"output.tracking.name=n"},
       {"output.report_to=[tensorboard]"},
       {"output.report_to=[trackio]"}},
      {{"output.tracking.uri=http://h"},
       {"output.report_to=[wandb]"},
       {"output.report_to=[mlflow]"}},
      {{"callbacks.events=[end]"}, {}, {"callbacks.command=ls"}},
      {{"callbacks.timeout=9s"}, {}, {"callbacks.command=ls"}},
      {{"callbacks.command=ls"}, {"callbacks.events=[]"}, {}},
      {{"callbacks.command=ls"},
       {"callbacks.events=[evaluation]"},
       {"callbacks.events=[evaluation]", "data.val=v.jsonl", "train.eval_steps=1"}},
  };
  return all;
}

std::string key_of_case(const Case& of) {
  const std::string key = of.set[0].substr(0, of.set[0].find('='));
  return key.starts_with("tuning.lora.rank_pattern") ? "tuning.lora.rank_pattern" : key;
}

TEST_F(IdleSettings, EachIsNamedWhereItHasNoEffectAndOnlyThere) {
  const auto found = [&](const Case& of, const std::vector<std::string>& with,
                         const RunFacts& facts) {
    std::vector<std::string> words = of.set;
    words.insert(words.end(), with.begin(), with.end());
    const LoadedConfig loaded = load("", words);
    RunConfig run = loaded.config;
    if (facts.world_size) run.parallel.axes = axes_of(run.parallel, *facts.world_size, 8);
    std::vector<IdleSetting> all = idle_settings(loaded);
    const std::vector<IdleSetting> later = idle_settings(loaded, run, facts);
    for (const IdleSetting& idle : later)
      for (const IdleSetting& before : all) EXPECT_NE(idle.key, before.key) << "said twice";
    all.insert(all.end(), later.begin(), later.end());
    const std::string key = key_of_case(of);
    return std::count_if(all.begin(), all.end(),
                         [&](const IdleSetting& idle) { return idle.key == key; });
  };
  for (const Case& of : cases()) {
    const std::string with = of.idle_with.empty() ? "" : of.idle_with[0];
    EXPECT_EQ(found(of, of.idle_with, of.idle_facts), 1) << of.set[0] << " " << with;
    const bool always_idle = of.set[0].starts_with("train.ddp_find") ||
                             of.set[0].starts_with("train.ddp_broadcast") ||
                             of.set[0].starts_with("train.generation_num_beams");
    if (always_idle) continue;
    EXPECT_EQ(found(of, of.effective_with, of.facts), 0) << of.set[0];
  }
}

TEST_F(IdleSettings, WhatSumsGradientsIsNamedAsItIsSet) {
  const std::vector<IdleSetting> idle =
      idle_settings(load("", {"parallel.dp_shard=2", "train.ddp_comm_hook=bf16"}));
  ASSERT_EQ(idle.size(), 1U);
  EXPECT_TRUE(idle[0].warning.starts_with(
      "train.ddp_comm_hook has no effect with parallel.dp_shard (fsdp), which sums gradients in"))
      << idle[0].warning;
}

TEST_F(IdleSettings, OnlyTheWeightOfValidationDataIsNamed) {
  const std::vector<IdleSetting> idle =
      idle_settings(load("", {"data.val=[{path: v.jsonl, weight: 2}]"}));
  ASSERT_EQ(idle.size(), 1U);
  EXPECT_TRUE(idle[0].warning.starts_with("weight in data.val has no effect: an evaluation reads"))
      << idle[0].warning;
}

TEST_F(IdleSettings, EveryRuleHasACase) {
  std::set<std::string> tried;
  for (const Case& of : cases()) tried.insert(key_of_case(of));
  for (const std::string& key : all_keys()) {
    if (effect_of(key) != Effect::kByRules || key.starts_with("tuning.lora.")) continue;
    EXPECT_TRUE(tried.contains(key)) << key;
  }
}

TEST_F(IdleSettings, DefaultsAndResolvedValuesAreNoReasonToWarn) {
  for (const char* mode : {"lora", "full"}) {
    for (const char* optimizer : {"adamw", "sgd", "muon"}) {
      for (const char* scheduler : {"cosine", "constant"}) {
        LoadedConfig loaded =
            load(fmt::format("tuning: {{mode: {}}}\ntrain: {{optimizer: {}, scheduler: {}}}\n",
                             mode, optimizer, scheduler));
        EXPECT_TRUE(idle_settings(loaded).empty());
        resolve(loaded, "run.yaml", /*world_size=*/1);
        const auto again = load_config(write("again.yaml", to_yaml(loaded.config)), {});
        EXPECT_EQ(again.warnings, std::vector<std::string>()) << mode << optimizer << scheduler;
        RunConfig run = again.config;
        resolve(run, "run.yaml", 1);
        for (const IdleSetting& idle :
             idle_settings(again, run, {.world_size = 1, .on_gpu = false}))
          ADD_FAILURE() << idle.warning;
      }
    }
  }
}

TEST_F(IdleSettings, SizesContradictWhatHasOneProcessOrWholeCopies) {
  const auto refused = [&](const std::vector<std::string>& words, const std::string& why) {
    test::expect_error<ConfigError>([&] { load("", words); }, {why});
  };
  refused({"parallel.device_map=auto", "parallel.dp_shard=2"},
          "`parallel.dp_shard` divides the processes of a run, and `parallel.device_map` has one "
          "process");
  refused({"parallel.strategy=single", "parallel.tp=2"},
          "`parallel.tp` divides the processes of a run, and `parallel.strategy: single` has one");
  refused({"parallel.strategy=ddp", "parallel.dp_shard=2"},
          "`parallel.strategy: ddp` keeps whole copies");
  load("", {"parallel.device_map=auto", "parallel.pp=2"});
  load("", {"parallel.strategy=fsdp", "parallel.pp=1", "parallel.tp=1", "parallel.dp_shard=1"});
  load("", {"parallel.pp=2", "parallel.tp=2", "parallel.dp_shard=2"});
  load("", {"parallel.strategy=ddp", "parallel.tp=2"});
}

}  // namespace
}  // namespace sftrun::config
