// Owner of the precompiled tensor header; see the top CMakeLists.txt.
