// Catch2 2 (Debian 12) wants its main function in one file; Catch2 3 (Ubuntu 24.04) brings it in a
// library.
#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_session.hpp>
int main(int argc, char** argv) { return Catch::Session().run(argc, argv); }
#else
#define CATCH_CONFIG_MAIN
#include <catch2/catch.hpp>
#endif
