#include "report/latex_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "report/text_width.h"

namespace kvlab::report {
namespace {

struct Letter {
  std::string_view letter, latex;
};

constexpr Letter kText[] = {
    {"\\", "\\textbackslash{}"},
    {"{", "\\{"},
    {"}", "\\}"},
    {"%", "\\%"},
    {"&", "\\&"},
    {"#", "\\#"},
    {"$", "\\$"},
    {"_", "\\_"},
    {"^", "\\textasciicircum{}"},
    {"~", "\\textasciitilde{}"},
    {"<", "\\textless{}"},
    {">", "\\textgreater{}"},
    {"|", "\\textbar{}"},
    // At the start of a row these would be arguments of the line end before it.
    {"[", "{[}"},
    {"*", "{*}"},
    {"\u00A0", "~"},
    {"\u202F", "\\,"},
    {"–", "--"},
    {"—", "---"},
    {"‘", "`"},
    {"’", "'"},
    {"“", "``"},
    {"”", "''"},
    {"…", "\\dots{}"},
    {"†", "\\textdagger{}"},
    {"‡", "\\textdaggerdbl{}"},
    {"•", "\\textbullet{}"},
    {"§", "\\S{}"},
    {"¶", "\\P{}"},
    {"©", "\\copyright{}"},
    {"®", "\\textregistered{}"},
    {"™", "\\texttrademark{}"},
    {"£", "\\pounds{}"},
    {"¡", "!`"},
    {"¿", "?`"},
};

/// Between dollars.
constexpr Letter kMath[] = {
    {"α", "\\alpha"},
    {"β", "\\beta"},
    {"γ", "\\gamma"},
    {"δ", "\\delta"},
    {"ε", "\\varepsilon"},
    {"ϵ", "\\epsilon"},
    {"ζ", "\\zeta"},
    {"η", "\\eta"},
    {"θ", "\\theta"},
    {"ϑ", "\\vartheta"},
    {"ι", "\\iota"},
    {"κ", "\\kappa"},
    {"λ", "\\lambda"},
    {"μ", "\\mu"},
    {"µ", "\\mu"},
    {"ν", "\\nu"},
    {"ξ", "\\xi"},
    {"ο", "o"},
    {"π", "\\pi"},
    {"ρ", "\\rho"},
    {"ς", "\\varsigma"},
    {"σ", "\\sigma"},
    {"τ", "\\tau"},
    {"υ", "\\upsilon"},
    {"φ", "\\varphi"},
    {"ϕ", "\\phi"},
    {"χ", "\\chi"},
    {"ψ", "\\psi"},
    {"ω", "\\omega"},
    {"Γ", "\\Gamma"},
    {"Δ", "\\Delta"},
    {"Θ", "\\Theta"},
    {"Λ", "\\Lambda"},
    {"Ξ", "\\Xi"},
    {"Π", "\\Pi"},
    {"Σ", "\\Sigma"},
    {"Υ", "\\Upsilon"},
    {"Φ", "\\Phi"},
    {"Ψ", "\\Psi"},
    {"Ω", "\\Omega"},
    {"±", "\\pm"},
    {"∓", "\\mp"},
    {"·", "\\cdot"},
    {"×", "\\times"},
    {"÷", "\\div"},
    {"−", "-"},
    {"≤", "\\leq"},
    {"≥", "\\geq"},
    {"≠", "\\neq"},
    {"≈", "\\approx"},
    {"≡", "\\equiv"},
    {"∼", "\\sim"},
    {"≪", "\\ll"},
    {"≫", "\\gg"},
    {"«", "\\ll"},
    {"»", "\\gg"},
    {"∝", "\\propto"},
    {"∞", "\\infty"},
    {"∂", "\\partial"},
    {"∇", "\\nabla"},
    {"∑", "\\sum"},
    {"∏", "\\prod"},
    {"∫", "\\int"},
    {"√", "\\surd"},
    {"∈", "\\in"},
    {"∉", "\\notin"},
    {"⊂", "\\subset"},
    {"⊆", "\\subseteq"},
    {"∪", "\\cup"},
    {"∩", "\\cap"},
    {"∅", "\\emptyset"},
    {"∀", "\\forall"},
    {"∃", "\\exists"},
    {"∧", "\\wedge"},
    {"∨", "\\vee"},
    {"¬", "\\neg"},
    {"→", "\\rightarrow"},
    {"←", "\\leftarrow"},
    {"↔", "\\leftrightarrow"},
    {"⇒", "\\Rightarrow"},
    {"⇐", "\\Leftarrow"},
    {"⇔", "\\Leftrightarrow"},
    {"↑", "\\uparrow"},
    {"↓", "\\downarrow"},
    {"↦", "\\mapsto"},
    {"‖", "\\Vert"},
    {"∥", "\\parallel"},
    {"⊥", "\\perp"},
    {"⊕", "\\oplus"},
    {"⊗", "\\otimes"},
    {"⊙", "\\odot"},
    {"∘", "\\circ"},
    {"⌊", "\\lfloor"},
    {"⌋", "\\rfloor"},
    {"⌈", "\\lceil"},
    {"⌉", "\\rceil"},
    {"⟨", "\\langle"},
    {"⟩", "\\rangle"},
    {"ℓ", "\\ell"},
    {"°", "^\\circ"},
    {"′", "'"},
    {"⊤", "\\top"},
    {"ᵀ", "^{\\top}"},
    {"½", "\\frac{1}{2}"},
    {"¼", "\\frac{1}{4}"},
    {"¾", "\\frac{3}{4}"},
    {"⁰", "^0"},
    {"¹", "^1"},
    {"²", "^2"},
    {"³", "^3"},
    {"⁴", "^4"},
    {"⁵", "^5"},
    {"⁶", "^6"},
    {"⁷", "^7"},
    {"⁸", "^8"},
    {"⁹", "^9"},
    {"⁺", "^+"},
    {"⁻", "^-"},
    {"₀", "_0"},
    {"₁", "_1"},
    {"₂", "_2"},
    {"₃", "_3"},
    {"₄", "_4"},
    {"₅", "_5"},
    {"₆", "_6"},
    {"₇", "_7"},
    {"₈", "_8"},
    {"₉", "_9"},
};

const Letter* find(const auto& letters, std::string_view letter) {
  const auto found = std::find_if(std::begin(letters), std::end(letters),
                                  [&](const Letter& one) { return one.letter == letter; });
  return found == std::end(letters) ? nullptr : &*found;
}

/// ASCII, and Latin letters with the accents that OT1 puts together.
bool is_plain(uint32_t code) {
  constexpr uint32_t kMissing[] = {0xD0, 0xD7, 0xDE, 0xF0, 0xF7, 0xFE};  // Ð × Þ ð ÷ þ
  return code < 0x7F ||
         (code >= 0xC0 && code <= 0xFF &&
          std::find(std::begin(kMissing), std::end(kMissing), code) == std::end(kMissing));
}

}  // namespace

std::string latex_text(std::string_view text) {
  std::string latex;
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    const uint32_t code = next_code(text, &at);
    const std::string_view letter = text.substr(begin, at - begin);
    if (const Letter* one = find(kText, letter)) {
      latex += one->latex;
    } else if (const Letter* math = find(kMath, letter)) {
      latex += fmt::format("${}$", math->latex);
    } else if (is_plain(code)) {
      latex += letter;
    } else {
      latex += fmt::format("\\texttt{{U+{:04X}}}", code);
    }
  }
  return latex;
}

}  // namespace kvlab::report
