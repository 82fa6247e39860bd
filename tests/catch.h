#pragma once

// Catch2 2.13 (Debian 12) and 3.4 (Ubuntu 24.04) differ in the name of their header.
#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
using Catch::Approx;
using Catch::Matchers::ContainsSubstring;
#else
#include <catch2/catch.hpp>
using Catch::Matchers::Contains;
inline auto ContainsSubstring(const std::string& text) { return Contains(text); }
#endif
