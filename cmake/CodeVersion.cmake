# Writes OUTPUT, one C++ file that holds a hash of every source of core/ and kernels/, so that a result can name the
# code that made it. Run as a script at build time: only this one small file is compiled again.
file(GLOB_RECURSE _sources RELATIVE ${SOURCE_DIR}
  ${SOURCE_DIR}/core/*.cpp ${SOURCE_DIR}/core/*.h ${SOURCE_DIR}/core/*.yaml
  ${SOURCE_DIR}/kernels/*.cpp ${SOURCE_DIR}/kernels/*.h ${SOURCE_DIR}/kernels/*.cu ${SOURCE_DIR}/kernels/*.cuh)
list(SORT _sources)
set(_all "")
foreach(_source IN LISTS _sources)
  file(SHA256 ${SOURCE_DIR}/${_source} _hash)
  string(APPEND _all "${_source} ${_hash}\n")
endforeach()
string(SHA256 _version "${_all}")
string(SUBSTRING ${_version} 0 16 _version)
set(_dirty "false")
execute_process(COMMAND git -C ${SOURCE_DIR} status --porcelain -- core kernels
  OUTPUT_VARIABLE _status ERROR_QUIET RESULT_VARIABLE _git)
if(_git EQUAL 0 AND NOT "${_status}" STREQUAL "")
  set(_dirty "true")
endif()
set(_text "#include \"base/code_version.h\"\n\nnamespace kvlab {\n\
std::string code_version() { return \"${_version}\"; }\n\
bool code_dirty() { return ${_dirty}; }\n}  // namespace kvlab\n")
set(_old "")
if(EXISTS ${OUTPUT})
  file(READ ${OUTPUT} _old)
endif()
if(NOT "${_old}" STREQUAL "${_text}")
  file(WRITE ${OUTPUT} "${_text}")
endif()
