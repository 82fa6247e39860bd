#include "metrics_catalog/catalog.h"

namespace kvlab::metrics {

const std::vector<MetricInfo>& catalog() {
  constexpr Over kv = Over::kv_heads;
  constexpr Over q = Over::q_heads;
  constexpr Over one = Over::none;
  static const std::vector<MetricInfo> metrics = {
      {"k_mse", "", "error", kv, false, false, "mean of (k̂−k)²"},
      {"v_mse", "", "error", kv, false, false, "mean of (v̂−v)²"},
      {"k_nmse", "", "error", kv, false, false, "Σ(k̂−k)² / Σk²"},
      {"v_nmse", "", "error", kv, false, false, "Σ(v̂−v)² / Σv²"},
      {"logit_mse", "", "attention", q, false, false,
       "mean of ((q·k̂−q·k)/√d)² over causal tokens, then probes"},
      {"attn_kl", "nats", "attention", q, false, false, "mean KL(P‖P̂) of the attention weights"},
      {"attn_top1", "", "attention", q, false, true, "share of probes with the same strongest key"},
      {"out_rel", "", "attention", q, false, false, "‖Ô−O‖ / ‖O‖ of a query head"},
      {"out_rel_k", "", "attention", q, false, false, "‖(P̂−P)V‖ / ‖O‖: the keys' part"},
      {"out_rel_v", "", "attention", q, false, false, "‖P̂(V̂−V)‖ / ‖O‖: the values' part"},
      {"out_cos", "", "attention", q, false, true, "mean cosine of o and ô"},
      {"wo_rel", "", "attention", one, false, false,
       "‖(Ô−O)W_Oᵀ‖ / ‖O W_Oᵀ‖ over all heads; the headline metric"},
      {"wo_rel_k", "", "attention", one, false, false, "the keys' part of wo_rel"},
      {"wo_rel_v", "", "attention", one, false, false, "the values' part of wo_rel"},
      {"tni_ratio", "", "tni", kv, false, false, "largest over smallest token norm"},
      {"tni_ratio_heads", "", "tni", one, false, false, "the same with norms over all KV heads"},
      {"tni_ratio_in", "", "tni", kv, false, false, "the same on what enters the codec"},
      {"tni_cv", "", "tni", kv, false, false, "standard deviation of token norms over their mean"},
      {"tni_block_ratio", "", "tni", kv, false, false,
       "largest over smallest norm within a block, averaged"},
      {"tni_bound", "", "tni", kv, false, false,
       "(max n − min n)²/(12(2^b−1)²), averaged over blocks"},
      {"tni_block_mse", "", "tni", kv, false, false,
       "measured Σ_c e² a token, averaged over blocks"},
      {"k_residual_trace", "", "residual", kv, false, false,
       "tr(C_Q·E_K): mean of (q·(k̂−k))² over stored queries and quantized tokens"},
      {"k_bits_needed", "bits", "residual", kv, false, false,
       "bits an element that an ideal code of normal keys with this covariance takes for "
       "k_residual_trace (reverse water-filling)"},
      {"k_importance", "", "residual", kv, false, false,
       "largest over mean entry of the diagonal of RᵀC_Q·R: how unevenly queries see the codec's "
       "channels"},
      {"k_entering_max", "", "residual", kv, false, false,
       "largest magnitude that enters the keys' codec, before clipping"},
      {"k_group_range", "", "residual", kv, false, false,
       "max − min of a group that enters the keys' codec, before clipping, averaged"},
      {"bits_per_element", "bits", "memory", one, false, false,
       "8 × bytes held at the last step / elements"},
      {"bits_at_8k", "bits", "memory", one, false, false, "bits per element at 8,192 tokens"},
      {"bits_at_32k", "bits", "memory", one, false, false, "bits per element at 32,768 tokens"},
      {"bits_at_128k", "bits", "memory", one, false, false, "bits per element at 131,072 tokens"},
      {"bits_per_element_hist", "bits", "memory", one, false, false,
       "bits per quantized element, windows left out"},
      {"bytes_codes", "bytes", "memory", one, true, false, "packed codes"},
      {"bytes_params", "bytes", "memory", one, true, false, "scales and zeros"},
      {"bytes_scales", "bytes", "memory", one, true, false, "token scales"},
      {"bytes_centers", "bytes", "memory", one, true, false, "centres"},
      {"bytes_window", "bytes", "memory", one, true, false, "full-precision tokens"},
      {"bytes_padding", "bytes", "memory", one, true, false, "alignment"},
      {"rotation_bytes", "bytes", "memory", one, true, false,
       "rotations and codebooks, not part of bits"},
      {"encode_us", "us", "kernel_time", one, false, false, "median encode time"},
      {"decode_us", "us", "kernel_time", one, false, false, "median decode time"},
      {"encode_mops", "Mop", "operations", one, false, false,
       "operations to encode the keys of the whole sample, counted"},
      {"decode_mops", "Mop", "operations", one, false, false,
       "operations of one decoding step on the keys, dot products left out, counted"},
      {"encode_mops_model", "Mop", "operations", one, false, false,
       "encode_mops by the cost model of OScaR's Tables 3 and 4"},
      {"decode_mops_model", "Mop", "operations", one, false, false,
       "decode_mops by the same model"},
      {"saturated", "", "error", kv, true, false, "elements whose unclamped code is out of range"},
      {"nonfinite", "", "error", kv, true, false, "decoded values that are not finite"},
      {"evicted_tokens", "tokens", "error", kv, false, false,
       "tokens of a head that are gone at the last step; they have the weight 0 and leave k_*, "
       "v_*"},
      {"nll", "nats", "perplexity", one, false, false,
       "mean negative log-likelihood of the next token"},
      {"ppl", "", "perplexity", one, false, false, "exp(nll)"},
      {"dnll", "nats", "perplexity", one, false, false,
       "nll minus that of the unquantized cache on the same passage"},
      {"dnll_tail", "nats", "perplexity", one, false, false, "dnll of positions from 512 on"},
      {"next_kl", "nats", "perplexity", one, false, false,
       "mean KL(p‖p̂) of the next-token distribution"},
      {"next_top1", "", "perplexity", one, false, true,
       "share of positions with the same most likely token"},
      {"needle_exact", "", "needle", one, false, true, "share of exact greedy answers",
       /*is_share_of_trials=*/true},
      {"needle_nll", "nats", "needle", one, false, false,
       "mean negative log-likelihood of the right answer's tokens"},
      {"divergence", "tokens", "divergence", one, false, true,
       "position of the first greedy token that differs from the unquantized cache's; 256: none"},
  };
  return metrics;
}

const MetricInfo* find_metric(const std::string& name) {
  for (const MetricInfo& metric : catalog()) {
    if (metric.name == name) return &metric;
  }
  return nullptr;
}

bool larger_is_better(const std::string& name) {
  if (const MetricInfo* info = find_metric(name)) return info->larger_is_better;
  return name.ends_with("_per_second") || name == "of_copy" || name == "of_read";
}

bool is_norm_ratio(const std::string& name) {
  return name.starts_with("out_rel") || name.starts_with("wo_rel");
}

const std::vector<std::string>& measures() {
  static const std::vector<std::string> words = {
      "error",    "attention",  "tni",        "memory", "kernel_time", "tokens",
      "residual", "operations", "perplexity", "needle", "divergence"};
  return words;
}

const std::vector<std::string>& model_measures() {
  static const std::vector<std::string> words = {"perplexity", "needle", "divergence"};
  return words;
}

}  // namespace kvlab::metrics
