#pragma once

#include <fmt/format.h>

#include "fields/limits.h"
#include "sftrun/config/run_config.h"

/// Losses and their settings.
namespace sftrun::config {

template <class Visitor>
void visit_objective_fields(TrainConfig& train, Visitor&& field) {
  using enum OnResume;
  field(train.objective, "objective", any(), kSame,
        "Loss that is minimised. " + objective_descriptions(), "dpo");
  field(train.beta, "beta", between(0, kMaxFactor).otherwise("0.1; 0 with grpo"), kSame,
        readers_of_setting("train.beta") +
            ": weight of the distance to the reference model; lower values allow larger changes. "
            "0, of grpo alone: there is no reference model. "
            "Without a reference model: factor of the rewards (SimPO's authors use 2 to 2.5), of "
            "orpo the weight of the odds ratio.",
        "0.1");
  field(train.loss_type, "loss_type", any().otherwise("sigmoid"), kSame,
        readers_of_setting("train.loss_type") +
            ": the loss of a pair, or a map of losses to weights whose sum it is. " +
            loss_formulas(),
        "{sigmoid: 0.8, bco_pair: 0.2, sft: 1.0}");
  field(train.label_smoothing, "label_smoothing",
        from_until(0, 0.5).otherwise(fmt::format("0; {} for exo_pair", kExoSmoothing)), kSame,
        fmt::format("Share of preferences that are taken to be wrong: e in the losses {}.",
                    losses_that_read("train.label_smoothing")),
        "0.1");
  field(train.ld_alpha, "ld_alpha", between(0, 1).otherwise("1"), kSame,
        readers_of_setting("train.ld_alpha") +
            ": weight of the log-probabilities of tokens of an answer beyond the length of the "
            "shorter answer (LD-DPO, arXiv:2409.06411).",
        "0.5");
  field(train.f_divergence, "f_divergence", any(), kSame,
        readers_of_setting("train.f_divergence") +
            ": what measures the distance to the reference model (arXiv:2309.16240), for losses of "
            "the difference h.",
        "js_divergence");
  field(train.f_alpha_divergence_coef, "f_alpha_divergence_coef", between(-kMaxFactor, kMaxFactor),
        kSame, "Alpha of `f_divergence: alpha_divergence`; 1 is reverse_kl.", "0.5");
  field(train.discopop_tau, "discopop_tau", above_up_to(0, kMaxFactor), kSame,
        "Temperature tau of the loss discopop.", "0.05");
  field(train.simpo_gamma, "simpo_gamma", between(0, kMaxFactor), kSame,
        readers_of_setting("train.simpo_gamma") +
            ": margin by which the mean reward of the chosen answer should be higher: gamma in "
            "-log sigmoid(beta (c / n_c - r / n_r) - gamma).",
        "0.5");
  field(train.cpo_alpha, "cpo_alpha", between(0, kMaxFactor).otherwise("1; 0 with simpo"), kSame,
        readers_of_setting("train.cpo_alpha") +
            ": weight of the cross-entropy of the chosen answers, which is added to the loss.",
        "1");
  field(train.desirable_weight, "desirable_weight", between(0, kMaxFactor), kSame,
        readers_of_setting("train.desirable_weight") +
            ": weight of desirable answers. The number of desirable answers times their weight "
            "should be 1 to 1.33 times that of undesirable ones (arXiv:2402.01306, equation 8).",
        "1");
  field(train.undesirable_weight, "undesirable_weight", between(0, kMaxFactor), kSame,
        readers_of_setting("train.undesirable_weight") + ": weight of undesirable answers.", "1");
  field(train.epsilon, "epsilon", between(0, 1e6), kSame,
        readers_of_setting("train.epsilon") +
            ": ratios of the model to the one that sampled are clipped below 1 - epsilon, and "
            "above 1 "
            "+ epsilon_high.",
        "0.2");
  field(
      train.epsilon_high, "epsilon_high", between(0, 1e6).otherwise("epsilon; 5 with cispo"), kSame,
      readers_of_setting("train.epsilon_high") +
          ": upper bound of ratios (DAPO's authors use 0.28). With `loss_type: cispo` the largest "
          "ratio itself (its authors use 5).",
      "0.28");
  field(train.delta, "delta", above_up_to(1, kMaxFactor).otherwise("none"), kSame,
        readers_of_setting("train.delta") +
            ": bound of ratios of answers with a negative advantage, which have none otherwise "
            "(arXiv:2505.07291); above 1 + epsilon_high.",
        "4");
  field(
      train.importance_sampling_level, "importance_sampling_level", any(), kSame,
      readers_of_setting("train.importance_sampling_level") +
          ": what has a ratio. token: each token. sequence: each answer, the geometric mean of its "
          "tokens' (GSPO, arXiv:2507.18071), with a small epsilon and `loss_type: grpo`.",
      "sequence");
  field(train.scale_rewards, "scale_rewards", any(), kSame,
        readers_of_setting("train.scale_rewards") +
            ": what advantages, which are rewards minus the mean of their group, are divided by. "
            "group: the standard deviation of the group. batch: that of all rewards. none: 1.",
        "none");
  field(
      train.mask_truncated_completions, "mask_truncated_completions", any(), kSame,
      readers_of_setting("train.mask_truncated_completions") +
          ": leave answers that reached their limit of tokens out of the loss (their rewards count "
          "in their groups).",
      "true");
  field(train.max_completion_length, "max_completion_length", between(1, 1 << 24), kSame,
        "The length that `loss_type: dr_grpo` divides the sum over an answer's tokens by: the most "
        "tokens that answers may have.",
        "1024");
  field(
      train.sampling_correction, "sampling_correction", any(), kSame,
      readers_of_setting("train.sampling_correction") +
          ": what is done where another engine sampled the answers, and records have its "
          "log-probabilities (`sampling_logprobs`) beside those of the model: the loss of a token "
          "is "
          "multiplied by the ratio of the two, of the token or of its whole answer, up to "
          "sampling_correction_max (truncate), or by 0 above it (mask). off: nothing.",
      "token_truncate");
  field(train.sampling_correction_max, "sampling_correction_max", above_up_to(0, kMaxFactor), kSame,
        "The largest ratio of `train.sampling_correction`.", "2");
  field(train.center_rewards_coefficient, "center_rewards_coefficient", between(0, kMaxFactor),
        kSame,
        readers_of_setting("train.center_rewards_coefficient") +
            ": weight of the mean of (chosen score + rejected score)^2 in the loss, which keeps "
            "scores "
            "near 0 (arXiv:2312.09244, TRL's name).",
        "0.01");
  field(train.problem_type, "problem_type", any(), kSame,
        readers_of_setting("train.problem_type") +
            ": whether a text has one class (cross-entropy) or any number of them (binary "
            "cross-entropy of each class), by transformers' names. auto: several if records have "
            "\"labels\".",
        "multi_label_classification");
  field(train.pooling, "pooling", any(), kSame,
        readers_of_setting("train.pooling") +
            ": which hidden states are the embedding of a text: that of its last token, or the "
            "mean of all of its tokens.",
        "mean");
  field(train.embed_temperature, "embed_temperature", above_up_to(0, kMaxFactor), kSame,
        readers_of_setting("train.embed_temperature") +
            ": divides similarities before the softmax; 1 / `scale` of sentence-transformers' "
            "MultipleNegativesRankingLoss, whose default is 20.",
        "0.02");
  field(train.embed_normalize, "embed_normalize", any(), kSame,
        readers_of_setting("train.embed_normalize") +
            ": embeddings have length 1, and similarities are cosines; else they are dot products.",
        "false");
  field(train.embed_symmetric, "embed_symmetric", any(), kSame,
        readers_of_setting("train.embed_symmetric") +
            ": the loss is the mean of that of finding each query's text and that of finding each "
            "text's query (MultipleNegativesSymmetricRankingLoss).",
        "true");
  field(train.negatives, "negatives", between(0, kMaxNegatives), kSame,
        readers_of_setting("train.negatives") +
            ": texts of each record that do not fit its query; a record that has more gives its "
            "first ones. Without it as many as the first record has.",
        "7");
  field(
      train.reference, "reference", any(), kSame,
      readers_of_setting("train.reference") +
          ": the reference model. start: the model as the run starts, with the adapter of "
          "tuning.lora.init_from. base: the base model, with adapters switched off. Else another "
          "model (a folder or a GGUF file) or an adapter of this one, which is loaded alone before "
          "the run's own, for the log-probabilities of all answers; not with kto and grpo.",
      "base");
  field(train.reference_logps, "reference_logps", any(), kSame,
        readers_of_setting("train.reference_logps") +
            ": when the reference model's log-probabilities are computed. online: in each step. "
            "precomputed: once, before the first step; they are kept beside the tokenized data "
            "(data.cache_dir).",
        "precomputed");
  field(train.teacher, "teacher", any(), kCompared,
        readers_of_setting("train.teacher") +
            ": the teacher: a folder in which `sftrun score --topk` has written its "
            "log-probabilities of this run's examples, or a model, which is loaded beside the "
            "student: a folder, a GGUF file, a name on the hub, or an adapter "
            "(docs/distillation.md).",
        "teacher");
  field(train.teacher_topk, "teacher_topk", between(1, kMaxTokens), kSame,
        readers_of_setting("train.teacher_topk") +
            ": of a teacher beside the student: its most likely tokens, whose log-probabilities "
            "are compared one by one; the others count together. The size of the vocabulary, or "
            "more: the whole distribution.",
        "128");
  field(train.teacher_quant, "teacher_quant", any().otherwise("the format of its files"), kSame,
        readers_of_setting("train.teacher_quant") +
            ": of a teacher beside the student: the format of its linear layers in memory, as "
            "tuning.quant has it.",
        "nf4");
  field(train.kd_alpha, "kd_alpha", between(0, 1), kSame,
        readers_of_setting("train.kd_alpha") +
            ": share of the divergence in the loss; the rest is the cross-entropy of the labels.",
        "0.9");
  field(train.kd_beta, "kd_beta", between(0, 1), kSame,
        readers_of_setting("train.kd_beta") +
            ": the divergence. 0: KL(teacher || student), 1: KL(student || teacher), between: the "
            "generalised Jensen-Shannon divergence of arXiv:2306.13649, as `beta` of TRL's "
            "GKDTrainer.",
        "0.5");
  field(train.kd_temperature, "kd_temperature", above_up_to(0, kMaxFactor), kSame,
        readers_of_setting("train.kd_temperature") +
            ": divides the logits of teacher and student in the divergence, as `temperature` of "
            "TRL's GKDTrainer. The teacher's scores must have been written with it.",
        "2.0");
}

}  // namespace sftrun::config
