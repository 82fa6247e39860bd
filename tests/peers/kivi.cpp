// KIVI: keys per channel, values per token, float zero; words of 16 codes.
#include "cache/windows.h"
#include "peers/parts.h"

namespace peers {

using kvlab::cache::Windows;

namespace {

/// Words whose sixteen codes are all defined.
at::Tensor whole_words(const at::Tensor& defined) {
  return defined.unflatten(-1, {-1, 16}).all(-1);
}

}  // namespace

void check_kivi(const Case& vector, Findings& findings) {
  const std::string side = vector.text("tensor") == "K" ? "key" : "value";
  Parts parts;
  parts.set(side + ".codec.bits", vector.integer("bits"))
      .set(side + ".codec.axis", shared_axis(vector.text("axis")))
      .set(side + ".codec.group", vector.integer("group"))
      .set(side + ".codec.grid", vector.text("grid"))
      .set(side + ".codec.params", vector.text("scale_dtype"))
      .set(side + ".codec.arithmetic", vector.text("dtype"))
      .set(side + ".codec.decode_arithmetic", vector.text("dequant_dtype"))
      .set("window.recent", vector.integer("residual_length"))
      .set("window.flush", "kivi");

  // What the code holds after the prompt is what the next token reads.
  const at::Tensor all = vector.only("input");
  const int64_t tokens = all.size(1);
  const Windows windows(parts.recipe().settings, tokens);
  const int64_t quantized =
      windows.boundary(side == "key" ? Windows::Side::key : Windows::Side::value, tokens);
  findings.that(quantized == vector.integer("quantized_tokens"), "tokens that are quantized");

  const at::Tensor x = all.narrow(1, 0, quantized);
  const Quantized ours = quantize(parts.codec(side), x);
  const at::Tensor scale = vector.only("scale");
  findings.equal("scale", ours.scale, scale);
  findings.equal("zero", ours.zero, vector.only("min"));
  findings.equal("values", ours.values, vector.only("dequant"));
  // Codes of a flat group are a division 0/0 cast to a whole number: undefined.
  const at::Tensor defined = spread(scale, x).ne(0);
  findings.equal("codes", ours.codes * defined, vector.only("codes") * defined);
  const at::Tensor packed = vector.only("packed");
  if (side == "key") {
    const at::Tensor use = whole_words(defined.transpose(1, 2));  // [H, d, n/16]
    const at::Tensor along_tokens = words(ours.codes.transpose(1, 2));
    findings.equal("words", along_tokens * use, packed.transpose(1, 2) * use);
    findings.equal("words of the kernels", along_tokens * use, vector.only("packed_triton") * use);
  } else {
    const at::Tensor use = whole_words(defined);
    findings.equal("words", words(ours.codes) * use, packed * use);
    // Our own bytes are these words.
    findings.equal("bytes", ours.encoded.codes.contiguous().view(at::kInt).to(at::kLong) * use,
                   packed * use);
  }
}

}  // namespace peers
