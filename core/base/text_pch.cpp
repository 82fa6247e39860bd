// Owner of the precompiled header of text and settings; see the top CMakeLists.txt.
